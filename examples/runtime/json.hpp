// JSON from outside: a parser that also refuses duplicate names and absurd nesting, and typed look-ups whose errors
// name the file, the member, what was expected and what was got.
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <decant/core/error.hpp>
#include <nlohmann/json.hpp>

namespace runtime {

using Json = nlohmann::json;

[[noreturn]] inline void bad_format(const std::string& where, const std::string& expected, const std::string& got) {
  throw decant::FormatError(where + ": expected " + expected + ", got " + got);
}

/// A JSON value for an error message: short, and printable whatever is in it.
inline std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

/// The text as one JSON object; `where` names it in errors.
inline Json parse_object(std::string_view text, const std::string& where) {
  constexpr int max_depth = 16;
  std::vector<std::set<std::string>> names;  // of the objects that are open, outermost first
  const auto check = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > max_depth) bad_format(where, "JSON nested at most " + std::to_string(max_depth) + " deep", "more");
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key && !names.back().insert(parsed.get_ref<const std::string&>()).second) {
      bad_format(where, "every name once", shown(parsed) + " twice");
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), check);
  } catch (const Json::exception& error) {
    bad_format(where, "JSON", error.what());
  }
  if (!json.is_object()) bad_format(where, "a JSON object", shown(json));
  return json;
}

inline std::string read_text_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.good() && !file.eof()) bad_format(path, "a readable file", "none");
  return text;
}

/// One JSON object with the name that errors give it.
class JsonObject {
 public:
  JsonObject(Json json, std::string where) : json_(std::move(json)), where_(std::move(where)) {}

  static JsonObject from_file(const std::string& path) { return {parse_object(read_text_file(path), path), path}; }

  const std::string& where() const { return where_; }
  /// True when the member is there and not null.
  bool has(const char* name) const { return json_.contains(name) && !json_[name].is_null(); }

  /// A whole number in [least, most].
  std::int64_t integer(const char* name, std::int64_t least, std::int64_t most) const {
    const std::string range = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    const Json& value = member(name, range);
    const bool ok = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX}) &&
                    value.get<std::int64_t>() >= least && value.get<std::int64_t>() <= most;
    if (!ok) bad(name, range, value);
    return value.get<std::int64_t>();
  }
  std::int64_t integer_or(const char* name, std::int64_t least, std::int64_t most, std::int64_t otherwise) const {
    return has(name) ? integer(name, least, most) : otherwise;
  }

  /// A finite number above 0.
  double positive(const char* name) const {
    const Json& value = member(name, "a number above 0");
    if (!value.is_number() || !(value.get<double>() > 0)) bad(name, "a number above 0", value);
    return value.get<double>();
  }

  bool flag_or(const char* name, bool otherwise) const {
    if (!has(name)) return otherwise;
    if (!json_[name].is_boolean()) bad(name, "true or false", json_[name]);
    return json_[name].get<bool>();
  }

  std::string string(const char* name) const {
    const Json& value = member(name, "a string");
    if (!value.is_string()) bad(name, "a string", value);
    return value.get<std::string>();
  }
  std::string string_or(const char* name, const std::string& otherwise) const {
    return has(name) ? string(name) : otherwise;
  }

  JsonObject object(const char* name) const {
    const Json& value = member(name, "an object");
    if (!value.is_object()) bad(name, "an object", value);
    return {value, where_ + ": \"" + name + "\""};
  }

  const Json& json() const { return json_; }

  [[noreturn]] void bad(const char* name, const std::string& expected, const Json& got) const {
    bad_format(where_ + ": \"" + name + "\"", expected, shown(got));
  }

 private:
  const Json& member(const char* name, const std::string& expected) const {
    if (!json_.contains(name)) bad_format(where_ + ": \"" + name + "\"", expected, "nothing");
    return json_[name];
  }

  Json json_;
  std::string where_;
};

}  // namespace runtime
