#include "packed_matrix.hpp"

#include <type_traits>

#include <decant/quant/codebook.hpp>
#include <decant/quant/fp4.hpp>
#include <decant/quant/fp8.hpp>
#include <decant/quant/ggml_blocks.hpp>
#include <decant/quant/ggml_k_blocks.hpp>
#include <decant/quant/if4.hpp>
#include <decant/quant/int_group.hpp>
#include <decant/quant/matmul.hpp>
#include <decant/quant/nf4.hpp>
#include <decant/quant/scaled.hpp>

#include "format_text.hpp"
#include "packed_formats.hpp"

namespace runtime {

namespace quant = decant::quant;

namespace {

/// Every format that a program can choose.
#define RUNTIME_FORMATS(X)                  \
  X(quant::Int<2>)                          \
  X(quant::Int<3>)                          \
  X(quant::Int<4>)                          \
  X(quant::Int<5>)                          \
  X(quant::Int<6>)                          \
  X(quant::Int<7>)                          \
  X(quant::Int<8>)                          \
  X(quant::Nf4)                             \
  X(quant::Fp8<decant::fp8_e4m3>)           \
  X(quant::MxFp4)                           \
  X(quant::NvFp4)                           \
  X(quant::If4)                             \
  X(quant::Codebook2x16<decant::fp16>)      \
  X(quant::Codebook2x16<decant::fp8_e4m3>)  \
  X(quant::ggml::Q8_0)                      \
  X(quant::ggml::Q4_0)                      \
  X(quant::ggml::Q4_1)                      \
  X(quant::ggml::Q4_K)                      \
  X(quant::ggml::Q6_K)                      \
  X(quant::ggml::IQ4_NL)                    \
  X(quant::Scaled<quant::Int<4>>)           \
  X(quant::Scaled<quant::Codebook2x16<decant::fp16>>)

// --- formats as text: to_text() for files, from_text() takes the parameters that follow the name
// --------------------------------

constexpr quant::IntGrid int_grids[] = {quant::IntGrid::zero_point, quant::IntGrid::minimum, quant::IntGrid::symmetric,
                                        quant::IntGrid::signed_max, quant::IntGrid::centred};

template <int Bits>
FormatText to_text(const quant::Int<Bits>& f) {
  return FormatText("int" + std::to_string(Bits)).with("group", f.group).with("grid", name(f.grid));
}
template <int Bits>
void from_text(FormatText& text, const std::string& where, quant::Int<Bits>& f) {
  f.group = text.take_number("group", where);
  const std::string wanted = text.take("grid", where);
  for (const quant::IntGrid grid : int_grids) {
    if (wanted != name(grid)) continue;
    f.grid = grid;
    return;
  }
  bad_format(where, "a known grid", shown(Json(wanted)));
}

FormatText to_text(const quant::Nf4& f) {
  return FormatText("nf4").with("block", f.block);
}
void from_text(FormatText& text, const std::string& where, quant::Nf4& f) {
  f.block = text.take_number("block", where);
}

template <class Scale>
FormatText to_text(const quant::Codebook2x16<Scale>& f) {
  return FormatText(std::is_same_v<Scale, decant::fp16> ? "codebook2x16_f16" : "codebook2x16_e4m3")
      .with("group", f.group)
      .with("select", f.select);
}
template <class Scale>
void from_text(FormatText& text, const std::string& where, quant::Codebook2x16<Scale>& f) {
  f.group = text.take_number("group", where);
  f.select = text.take_number("select", where);
}

template <class F>
FormatText to_text(const quant::Scaled<F>& f) {
  FormatText text = to_text(f.inner);
  return text.named("scaled_" + text.name());
}
template <class F>
void from_text(FormatText& text, const std::string& where, quant::Scaled<F>& f) {
  from_text(text, where, f.inner);
}

// Formats without parameters.
FormatText to_text(const quant::MxFp4&) { return FormatText("mxfp4"); }
FormatText to_text(const quant::NvFp4&) { return FormatText("nvfp4"); }
FormatText to_text(const quant::If4&) { return FormatText("if4"); }
FormatText to_text(const quant::Fp8<decant::fp8_e4m3>&) { return FormatText("fp8_e4m3"); }
FormatText to_text(const quant::ggml::Q8_0&) { return FormatText("q8_0"); }
FormatText to_text(const quant::ggml::Q4_0&) { return FormatText("q4_0"); }
FormatText to_text(const quant::ggml::Q4_1&) { return FormatText("q4_1"); }
FormatText to_text(const quant::ggml::Q4_K&) { return FormatText("q4_k"); }
FormatText to_text(const quant::ggml::Q6_K&) { return FormatText("q6_k"); }
FormatText to_text(const quant::ggml::IQ4_NL&) { return FormatText("iq4_nl"); }
template <class F>
void from_text(FormatText&, const std::string&, F&) {}

// --- matrices --------------------------------------------------------------------------------------------------------

template <class F>
class Holder final : public PackedWeights {
 public:
  Holder(const quant::Packed<F>& matrix, std::shared_ptr<const void> owner)
      : matrix_(matrix), owner_(std::move(owner)) {}

  index_t rows() const override { return matrix_.rows(); }
  index_t cols() const override { return matrix_.cols(); }
  View<const std::byte, 1> data() const override { return {matrix_.data(), matrix_.bytes()}; }
  std::string format() const override { return to_text(matrix_.format()).text(); }
  void multiply(decant::Cpu& cpu, View<const float, 2> x, View<float, 2> y) const override {
    // As the stored matrices, whose products are in fp32: what is judged is the weights.
    matmul(cpu, matrix_, x, y, quant::Activations::fp32);
  }
  void row(decant::Cpu& cpu, index_t r, View<float, 1> out) const override { dequantize_row(cpu, matrix_, r, out); }

 private:
  quant::Packed<F> matrix_;
  std::shared_ptr<const void> owner_;
};

/// The matrix if `text` names F.
template <class F>
std::shared_ptr<const PackedWeights> read_as(const FormatText& text, index_t rows, index_t cols,
                                             View<const std::byte, 1> bytes, const std::string& where) {
  F format{};
  if (to_text(format).name() != text.name()) return nullptr;
  FormatText rest = text;
  from_text(rest, where, format);
  rest.require_empty(where);
  try {
    return std::make_shared<Holder<F>>(quant::Packed<F>(format, rows, cols, bytes), nullptr);
  } catch (const decant::ArgumentError& error) {
    throw decant::FormatError(where + ": " + error.what());
  }
}

}  // namespace

PackedMatrix read_packed(const std::string& format, index_t rows, index_t cols, View<const std::byte, 1> bytes,
                         const std::string& where) {
  const FormatText text = FormatText::parse(format, where);
#define RUNTIME_READ(F) \
  if (auto found = read_as<F>(text, rows, cols, bytes, where)) return PackedMatrix(std::move(found));
  RUNTIME_FORMATS(RUNTIME_READ)
#undef RUNTIME_READ
  bad_format(where, "a known format", shown(Json(format)));
}

template <class F>
PackedMatrix hold(const quant::Packed<F>& matrix, std::shared_ptr<const void> owner) {
  return PackedMatrix(std::make_shared<Holder<F>>(matrix, std::move(owner)));
}

#define RUNTIME_HOLD(F) template PackedMatrix hold(const quant::Packed<F>&, std::shared_ptr<const void>);
RUNTIME_FORMATS(RUNTIME_HOLD)
#undef RUNTIME_HOLD
#undef RUNTIME_FORMATS

}  // namespace runtime
