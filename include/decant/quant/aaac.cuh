// decant: Aaac on CUDA. Sums are taken in the order of the CPU's, so tables, choices, scales and codes are those of the
// CPU to the bit; nothing is decided on the host, so calls do not wait and can be captured. Each pass reads the weights
// that it looks at once: mode paper all of them outer * (1 + inner) + 7 times, mode best_of `sample` of them up to
// 16 * passes times, `most` up to passes times, and all of them 6 times.
#ifndef DECANT_QUANT_AAAC_CUH
#define DECANT_QUANT_AAAC_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "../core/cuda.cuh"
#include "aaac.hpp"
#include "detail/aaac_kernels.cuh"
#include "detail/aaac_quantiles.cuh"

namespace decant::quant {

namespace detail {

/// The launches of a fit to one matrix, or to some of its rows.
template <class F>
class AaacFit {
 public:
  AaacFit(Cuda& cuda, const F& format, AaacControl<F>* control, View<const float, 2> w, const float* importance,
          bool squares, int entries, const AaacQuantiles& quantiles)
      : cuda_(cuda), entries_(entries), quantiles_(quantiles) {
    Workspace& workspace = cuda.workspace();
    const AaacShape shape = AaacShape::of(format, w.extent(1));
    const index_t rows = w.extent(0);
    data_ = {format, control, shape, w, squares, importance, workspace.take<float>(rows * shape.scales),
             workspace.take<float>(rows * shape.selects), workspace.take<float>(rows * shape.selects),
             workspace.take<std::uint8_t>(rows * shape.selects), nullptr, nullptr};
    data_.sums = workspace.take<double>(data_.chunks() * 64);
    data_.errors = workspace.take<double>(data_.chunks());
    begin();
  }

  /// Scales from the largest weights.
  void begin() { run(aaac_begin<F>, data_.rows() * data_.shape.scales, aaac_halves, aaac_threads, data_); }

  void step(AaacStep s) { run(aaac_step<F>, 1, 1, 1, data_.control, s, entries_); }

  void quantile_table(double first, double last, int t) { quantiles(AaacOf::weights, first, last, t); }

  void paper_start() {
    quantile_table(0, 1, 0);
    quantile_table(0.5 / (entries_ - 1), 1, 1);
  }
  void start(int which, int passes) {
    switch (which) {
      case 0:
        paper_start();
        break;
      case 1:
      case 2:
        quantile_table(0.001, 0.999, 0);
        step(AaacStep::both_alike);
        if (which == 1) {
          settle(passes, AaacTail::plain, 0);
          settle(passes, AaacTail::magnitude, 1);
        } else {
          run(aaac_choose_by_sign<F>, data_.rows() * data_.shape.selects, aaac_halves, aaac_threads, data_);
          settle(passes, AaacTail::plain, -1);
        }
        break;
      default:
        step(AaacStep::if4);
    }
    step(AaacStep::keep_start);
  }

  void choose() { sweep({.choose = true}); }
  void settle(int passes, AaacTail tail, int forced) {
    for (int pass = 0; pass < passes; ++pass) {
      sweep({.accumulate = true, .tail = tail, .forced = forced});
      move(-1, false);
    }
  }
  /// asks: scales are refitted only if the best candidate's are.
  void descend(int passes, bool refit, bool asks) {
    for (int pass = 0; pass <= passes; ++pass) {
      const bool last = pass == passes;
      sweep({.choose = true, .refit = refit && !last, .accumulate = !last, .asks = asks});
      move(pass, last);
      if (last) break;
      quantiles(AaacOf::errors, 0, 0, 0);
      quantiles(AaacOf::worst, 0, 1, 0);
    }
  }

 private:
  template <class... Parameters>
  void run(void (*kernel)(Parameters...), index_t items, index_t per_block, int threads,
           const std::type_identity_t<Parameters>&... arguments) {
    const CudaGrid grid{cuda_blocks(items, per_block), dim3(static_cast<unsigned>(threads))};
    launch(cuda_, "quant::quantize", kernel, grid, arguments...);
  }
  void sweep(const AaacDevicePass& pass) {
    run(aaac_sweep<F>, data_.chunks(), aaac_halves, aaac_threads, data_, pass);
  }
  void move(int pass, bool last) { run(aaac_move<F>, 1, 1, 96, data_, pass, last, entries_); }
  void fill(void* memory, int value, index_t bytes) {
    ::decant::detail::require_cuda(cudaMemsetAsync(memory, value, static_cast<std::size_t>(bytes), cuda_.stream()),
                                   "quant::quantize", "cudaMemsetAsync");
  }
  void quantiles(AaacOf of, double first, double last, int t) {
    const int ranks = of == AaacOf::errors ? 1 : 2 * entries_;
    constexpr index_t row = aaac_bins * sizeof(std::uint32_t);
    const index_t groups = data_.rows() * data_.shape.selects;
    fill(quantiles_.first, 0xff, row);
    fill(quantiles_.second, 0xff, aaac_ranks * row);
    for (int level = 0; level < 3; ++level) {
      fill(quantiles_.counts, 0, aaac_ranks * row);
      run(aaac_count<F>, groups, aaac_threads / 32, aaac_threads, data_, quantiles_, of, level);
      run(aaac_find<F>, ranks, 1, 256, data_, quantiles_, of, level, first, last, entries_);
    }
    run(aaac_found<F>, 1, 1, 1, data_, quantiles_, of, t, entries_);
  }

  Cuda& cuda_;
  AaacDevice<F> data_;
  int entries_;
  AaacQuantiles quantiles_;
};

/// F::fit of all rows' groups with *layer: their errors; and their bytes where `write`.
template <class F>
void aaac_pack(Cuda& cuda, const F& format, const typename F::Layer* layer, View<const float, 2> w,
               const float* importance, double* error, const Packed<F, std::byte>& out, bool write) {
  const CudaGrid grid{cuda_blocks(w.extent(0), aaac_halves), aaac_threads};
  launch(cuda, "quant::quantize", aaac_fit_groups<F>, grid, format, AaacShape::of(format, w.extent(1)), layer, w,
         importance, error, out, write, cuda.fault());
}

/// The errors of all rows under *layer, for a verdict.
template <class F>
void aaac_weigh(Cuda& cuda, const F& format, AaacControl<F>* control, const typename F::Layer* layer,
                View<const float, 2> w, const float* importance, double* error, AaacVerdict verdict) {
  aaac_pack(cuda, format, layer, w, importance, error, Packed<F, std::byte>(), false);
  launch(cuda, "quant::quantize", aaac_judge<F>, CudaGrid{1, 1}, control, verdict, error, w.extent(0));
}

/// control->best becomes the fitted layer.
template <class Scale>
void aaac_fit(Cuda& cuda, const Aaac<Scale>& q, AaacControl<Codebook2x16<Scale>>* control, View<const float, 2> w,
              const float* raw, const float* relative, double* error) {
  using F = Codebook2x16<Scale>;
  const F format = q.format();
  const int entries = q.table_entries();
  Workspace& workspace = cuda.workspace();
  const AaacQuantiles quantiles{workspace.take<std::uint32_t>(aaac_ranks * aaac_bins),
                                workspace.take<std::uint32_t>(aaac_bins),
                                workspace.take<std::uint32_t>(aaac_ranks * aaac_bins),
                                workspace.take<std::uint32_t>(aaac_ranks),
                                workspace.take<index_t>(aaac_ranks),
                                workspace.take<double>(aaac_ranks / 2),
                                workspace.take<std::uint32_t>(2)};
  if (q.mode == AaacMode::paper) {
    AaacFit<F> fit(cuda, format, control, w, relative, false, entries, quantiles);
    fit.paper_start();
    for (int outer = 0; outer < q.outer; ++outer) {
      fit.choose();
      fit.settle(q.inner, AaacTail::plain, -1);
    }
    fit.step(AaacStep::paper);
    return;
  }
  const AaacShape shape = AaacShape::of(format, w.extent(1));
  const View<const float, 2> sample = some_rows(shape, w, q.sample);
  const View<const float, 2> more = some_rows(shape, w, q.most);
  const bool starts[] = {q.starts.paper, q.starts.density_tail, q.starts.signed_extreme, q.starts.if4};
  {
    AaacFit<F> fit(cuda, format, control, sample, relative, true, entries, quantiles);
    for (int which = 0; which < 4; ++which) {
      if (!starts[which]) continue;
      fit.start(which, q.passes);
      for (const bool refit : {false, true}) {
        if (q.refit != AaacRefit::best_of && (q.refit == AaacRefit::yes) != refit) continue;
        fit.step(AaacStep::descend);
        fit.descend(q.passes, refit, false);
        if (refit) fit.begin();
        fit.step(refit ? AaacStep::candidate_refit : AaacStep::candidate);
        aaac_weigh(cuda, format, control, &control->candidate, sample, raw, error, AaacVerdict::candidate);
      }
    }
  }
  if (more.extent(0) > sample.extent(0)) {
    // Whether the best candidate has its scales refitted is known to the device alone.
    AaacFit<F> fit(cuda, format, control, more, relative, true, entries, quantiles);
    fit.step(AaacStep::descend_more);
    fit.descend(q.passes, q.refit != AaacRefit::no, true);
    fit.step(AaacStep::best_is_more);
  }
  aaac_weigh(cuda, format, control, &control->best, w, raw, error, AaacVerdict::best);
  aaac_weigh(cuda, format, control, &control->if4, w, raw, error, AaacVerdict::if4);
}

}  // namespace detail

/// Everything in device memory: w [rows, cols] with contiguous rows, calibration.importance if there, out's bytes.
/// Weights that are not finite, and importance that is not finite or negative, are reported at cuda.check(), and
/// nothing is written. The same bytes as on the CPU.
template <class Scale>
void quantize(Cuda& cuda, const Aaac<Scale>& q, View<const float, 2> w, const Calibration& c,
              const Packed<Codebook2x16<Scale>, std::byte>& out) {
  using F = Codebook2x16<Scale>;
  constexpr const char* where = "quant::quantize";
  detail::require_weight_shape(w, out);
  validate(q, out.cols());
  require_calibration(c, {}, out.cols(), where);
  detail::require_format(q, out);
  Workspace& workspace = cuda.workspace();
  Workspace::Scope scope(workspace);
  const index_t rows = w.extent(0);
  auto* const control = workspace.take<detail::AaacControl<F>>(1);
  float* const largest = workspace.take<float>(rows);
  float* const raw = workspace.take<float>(out.cols());
  float* const relative = workspace.take<float>(out.cols());
  double* const error = workspace.take<double>(rows);
  launch(cuda, where, detail::aaac_look<F>, CudaGrid{cuda_blocks(rows, 1), detail::aaac_threads}, w, largest,
         cuda.fault());
  launch(cuda, where, detail::aaac_prepare<F>, CudaGrid{1, 32}, control, q.table_entries(), largest, rows, c.importance,
         out.cols(), q.mode == AaacMode::paper ? 0.0f : 1e-6f, raw, relative, cuda.fault());
  if (rows > 0) detail::aaac_fit(cuda, q, control, w, raw, relative, error);
  launch(cuda, where, detail::aaac_clear<F>, CudaGrid{cuda_blocks(out.bytes(), 256, 65535), 256}, out, out.bytes(),
         &control->best, cuda.fault());
  if (rows == 0) return;
  detail::aaac_pack(cuda, q.format(), &control->best, w, raw, error, out, true);
  launch(cuda, where, detail::aaac_codes<F>, CudaGrid{cuda_blocks(rows * ((out.cols() + 1) / 2), 256), 256},
         &control->best, w, out, cuda.fault());
}

static_assert(Quantizer<Aaac<>, Cuda> && Quantizer<Aaac<fp8_e4m3>, Cuda>);

}  // namespace decant::quant

#endif
