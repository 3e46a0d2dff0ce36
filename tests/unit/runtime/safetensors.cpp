// The safetensors reader against files that lie.
#include "safetensors.hpp"

#include <cstring>

#include "catch_compat.hpp"
#include "model_files.hpp"

namespace runtime_test {
namespace {

using decant::FormatError;
using runtime::Checkpoint;
using runtime::SafetensorsFile;

/// What the reader says to a file with these bytes.
std::string verdict(const TemporaryFolder& folder, const std::string& bytes) {
  const std::string path = folder.file("hostile.safetensors");
  write_file(path, bytes);
  return error_of<FormatError>([&] { SafetensorsFile file(path); });
}

const std::vector<NamedTensor> two = {{"a", {2, 3}, {1, 2, 3, 4, 5, 6}}, {"b", {4}, {7, 8, 9, 10}}};

TEST_CASE("safetensors: tensors come back as they were written, in each dtype", "[safetensors]") {
  const TemporaryFolder folder;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    write_file(folder.file("x.safetensors"), safetensors(two, dtype));
    const SafetensorsFile file(folder.file("x.safetensors"));
    REQUIRE(file.tensors().size() == 2);
    for (const NamedTensor& expected : two) {
      const runtime::Tensor& t = file.tensors().at(expected.name);
      CHECK(t.dtype == dtype);
      CHECK(t.shape == expected.shape);
      const std::string bytes = stored(expected.values, dtype);
      REQUIRE(t.bytes == static_cast<index_t>(bytes.size()));
      CHECK(std::memcmp(t.data, bytes.data(), bytes.size()) == 0);
    }
  }
}

TEST_CASE("safetensors: an empty header and empty tensors are legal", "[safetensors]") {
  const TemporaryFolder folder;
  CHECK(verdict(folder, safetensors("{}", "")) == "no error");
  CHECK(verdict(folder, safetensors(R"({"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},)"
                                    R"("b":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                                    "1234")) == "no error");
}

TEST_CASE("safetensors: cut off anywhere, and with bytes too many, a file is refused", "[safetensors]") {
  const TemporaryFolder folder;
  const std::string whole = safetensors(two, DType::f32);
  REQUIRE(verdict(folder, whole) == "no error");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO("cut to " << size << " of " << whole.size() << " bytes");
    REQUIRE(verdict(folder, whole.substr(0, size)) != "no error");
  }
  CHECK_THAT(verdict(folder, whole + "x"), catch_compat::contains("40 bytes of tensors, got 41"));
}

TEST_CASE("safetensors: a header length that lies is refused", "[safetensors]") {
  const TemporaryFolder folder;
  std::string file = safetensors(two, DType::f32);
  for (const std::uint64_t length :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{file.size()}, std::uint64_t{file.size() - 7},
        std::uint64_t{1} << 32, std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{7}}) {
    std::memcpy(file.data(), &length, 8);
    INFO(length);
    CHECK(verdict(folder, file) != "no error");
  }
  CHECK_THAT(verdict(folder, file), catch_compat::contains("header length: expected at most"));
}

TEST_CASE("safetensors: entries that lie are refused by name", "[safetensors]") {
  const TemporaryFolder folder;
  struct Case {
    const char* header;
    const char* message;
  };
  const Case cases[] = {
      {"", "expected JSON"},
      {"[]", "expected a JSON object"},
      {"{\"a\":1}", "tensor \"a\": expected an object, got 1"},
      {R"({"a":{"shape":[4],"data_offsets":[0,16]}})", "\"dtype\": expected a string, got nothing"},
      {R"({"a":{"dtype":7,"shape":[4],"data_offsets":[0,16]}})", "\"dtype\": expected a string, got 7"},
      {R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})", "F8_E5M2 or U8, got \"F64\""},
      {R"({"a":{"dtype":"F32","data_offsets":[0,16]}})", "\"shape\": expected an array, got nothing"},
      {R"({"a":{"dtype":"F32","shape":4,"data_offsets":[0,16]}})", "\"shape\": expected an array, got 4"},
      {R"({"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})", "whole numbers of at least 0, got -4"},
      {R"({"a":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]}})", "whole numbers of at least 0, got 4.0"},
      {R"({"a":{"dtype":"F32","shape":["4"],"data_offsets":[0,16]}})", "whole numbers of at least 0"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,16]}})", "whole numbers of at least 0"},
      {R"({"a":{"dtype":"F32","shape":[1e30],"data_offsets":[0,16]}})", "whole numbers of at least 0"},
      // 2^32 * 2^32 * 4 wraps to 0, 2^62 * 4 too, and (2^61 + 4) * 4 to 16 in 64 bits.
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}})", "a product below 2^63"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,16]}})", "fewer than 2^63 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2305843009213693956],"data_offsets":[0,16]}})", "fewer than 2^63 bytes"},
      {R"({"a":{"dtype":"F32","shape":[4]}})", "\"data_offsets\": expected an array, got nothing"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0]}})", "two offsets"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16,16]}})", "two offsets"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[-1,15]}})", "whole numbers of at least 0"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})", "an ascending pair up to the 16 bytes"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[16,32]}})", "an ascending pair up to the 16 bytes"},
      {R"({"a":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}})", "20 bytes for shape [5], got [0,16]"},
      {R"({"a":{"dtype":"F16","shape":[4],"data_offsets":[0,16]}})", "8 bytes for shape [4], got [0,16]"},
      // Overlap, holes at the beginning, between and at the end, and data that stands off its alignment.
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
       "tensor \"b\": expected data at offset 12"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}})", "tensor \"a\": expected data at offset 0"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
       "tensor \"b\": expected data at offset 4"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", "expected 12 bytes of tensors, got 16"},
      {R"({"b":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"a":{"dtype":"F32","shape":[3],"data_offsets":[2,14]}})",
       "aligned to its element size"},
      // Names twice, at both levels, and metadata that is no map of strings.
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
       "expected every name once, got \"a\" twice"},
      {R"({"a":{"dtype":"F32","shape":[4],"shape":[4],"data_offsets":[0,16]}})", "got \"shape\" twice"},
      {R"({"__metadata__":{"n":1},"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "an object of strings"},
      {R"({"__metadata__":[],"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "an object of strings"},
      {R"({"__metadata__":{"a":[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]}})", "nested at most 16 deep"},
  };
  for (const Case& c : cases) {
    INFO(c.header);
    const std::string said = verdict(folder, safetensors(c.header, std::string(16, '\0')));
    CHECK_THAT(said, catch_compat::contains(c.message));
    CHECK_THAT(said, catch_compat::contains("hostile.safetensors"));
  }
}

TEST_CASE("safetensors: tensors may lie in any order", "[safetensors]") {
  const TemporaryFolder folder;
  CHECK(verdict(folder, safetensors(R"({"z":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                    R"("a":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}})",
                                    std::string(16, '\0'))) == "no error");
}

TEST_CASE("safetensors: no mutation of a header is followed out of the file", "[safetensors]") {
  // Every tensor of an accepted file must lie inside it; reading all of them would show a mistake under
  // AddressSanitizer.
  const TemporaryFolder folder;
  const std::string whole = safetensors(two, DType::f32);
  const std::string alphabet = "0123456789-.eE{}[]\",:abF \\u\xff";
  const decant::Philox random{7};
  int accepted = 0;
  for (std::uint32_t round = 0; round < 4000; ++round) {
    std::string file = whole;
    const std::uint32_t changes = 1 + random(round).word[0] % 3;
    for (std::uint32_t i = 0; i < changes; ++i) {
      const auto r = random(round, 1 + i);
      const std::size_t at = r.word[0] % file.size();
      file[at] = r.word[1] % 2 == 0 ? alphabet[r.word[2] % alphabet.size()] : static_cast<char>(r.word[2] & 0xff);
    }
    write_file(folder.file("m.safetensors"), file);
    try {
      const SafetensorsFile opened(folder.file("m.safetensors"));
      unsigned sum = 0;
      for (const auto& [name, tensor] : opened.tensors()) {
        for (index_t i = 0; i < tensor.bytes; ++i) sum += std::to_integer<unsigned>(tensor.data[i]);
      }
      accepted += sum < 256u * file.size() ? 1 : 0;
    } catch (const FormatError&) {
    }
  }
  CHECK(accepted > 0);  // bytes of the body may change freely
  CHECK(accepted < 4000);
}

TEST_CASE("safetensors: a file that is not there, or is a folder, is an error with the system's reason",
          "[safetensors]") {
  const TemporaryFolder folder;
  CHECK_THAT(error_of<FormatError>([&] { SafetensorsFile file(folder.file("none")); }),
             catch_compat::contains("No such file"));
  CHECK(error_of<FormatError>([&] { SafetensorsFile file(folder.path()); }) != "no error");
}

TEST_CASE("checkpoint: shards are found through the index", "[safetensors]") {
  const TemporaryFolder folder;
  write_file(folder.file("one.safetensors"), safetensors({two[0]}, DType::f32));
  write_file(folder.file("two.safetensors"), safetensors({two[1]}, DType::bf16));
  const auto index = [&](const Json& map) {
    write_file(folder.file("model.safetensors.index.json"), Json{{"weight_map", map}}.dump());
  };
  index({{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  const Checkpoint checkpoint(folder.path());
  CHECK(checkpoint.get("a", {2, 3}).dtype == DType::f32);
  CHECK(checkpoint.get("b", {4}).dtype == DType::bf16);
  CHECK(checkpoint.contains("a"));
  CHECK_THAT(error_of<FormatError>([&] { checkpoint.get("c", {4}); }),
             catch_compat::contains("tensor \"c\": expected shape [4], got nothing"));
  CHECK_THAT(error_of<FormatError>([&] {
               checkpoint.get("a", {3, 2});
             }),
             catch_compat::contains("one.safetensors: tensor \"a\": expected shape [3, 2], got [2, 3]"));

  const auto refused = [&](const Json& map) {
    index(map);
    return error_of<FormatError>([&] { Checkpoint other(folder.path()); });
  };
  for (const char* name :
       {"../one.safetensors", "/etc/passwd", "x/../one.safetensors", "", ".", "..", ".hidden", "a\\b"}) {
    INFO(name);
    CHECK_THAT(refused({{"a", name}}), catch_compat::contains("the name of a file in the same folder"));
  }
  CHECK_THAT(refused({{"a", 1}}), catch_compat::contains("the name of a file in the same folder, got 1"));
  CHECK_THAT(refused({{"c", "one.safetensors"}}), catch_compat::contains("no such tensor there"));
  CHECK_THAT(refused({{"a", "three.safetensors"}}), catch_compat::contains("No such file"));
  CHECK_THAT(refused(7), catch_compat::contains("\"weight_map\": expected an object, got 7"));
  write_file(folder.file("two.safetensors"), safetensors(two, DType::f32));
  CHECK_THAT(refused({{"a", "one.safetensors"}, {"b", "two.safetensors"}}),
             catch_compat::contains("every tensor in one file"));
}

}  // namespace
}  // namespace runtime_test
