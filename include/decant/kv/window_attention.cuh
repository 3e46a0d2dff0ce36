// decant: WindowAttention on Cuda (detail/attention_columns.cuh: bytes and FLOPs). Against the f64 definition within
// 2e-6 of a head's largest score (5e-6 for heads of some ten thousand tokens), as on the CPU.
#ifndef DECANT_KV_WINDOW_ATTENTION_CUH
#define DECANT_KV_WINDOW_ATTENTION_CUH

#ifndef __CUDACC__
#error "decant: a .cuh file is for nvcc; a plain C++ compiler includes the .hpp of the same name"
#endif

#include "detail/attention_columns.cuh"
#include "window_attention.hpp"

namespace decant::kv {

namespace detail {

/// scores(h, t) = finish(the group's reduction of the summed weights of `window` queries). x: a plain layer.
template <class X>
void grouped_columns(Cuda& cuda, const char* where, const X& x, index_t longest, index_t window, Reduce reduce,
                     ColumnFinish finish, View<float, 2> scores) {
  const index_t group = x.queries.extent(0) / x.kv_heads();
  if (reduce != Reduce::max || group == 1) {
    if (reduce == Reduce::mean) finish.factor /= static_cast<float>(group);
    attention_columns<Weight>(cuda, where, x, longest, ColumnQueries{window, 0, group}, finish, scores);
    return;
  }
  attention_columns<Weight>(cuda, where, x, longest, ColumnQueries{window, 0, 1}, ColumnFinish{}, scores);
  Workspace::Scope scope(cuda.workspace());
  const auto other = cuda.workspace().template take_view<float>(x.kv_heads(), longest);
  for (index_t member = 1; member < group; ++member) {
    attention_columns<Weight>(cuda, where, x, longest, ColumnQueries{window, member, 1}, ColumnFinish{}, other);
    launch(cuda, where, larger_columns_kernel<X>,
           CudaGrid{dim3(cuda_blocks(longest, 256), static_cast<unsigned>(x.kv_heads())), dim3(256)}, x, other, finish,
           member + 1 == group, scores, cuda.fault());
  }
}

}  // namespace detail

/// O(window * query_heads * n * key_dim).
template <class X>
void score(Cuda& cuda, const WindowAttention& s, const X& x, View<float, 2> scores) {
  constexpr const char* where = "kv::WindowAttention";
  validate(s);
  const index_t longest = detail::begin_scores(cuda, where, x, scores, detail::need_queries(x, s.window, where));
  Workspace::Scope scope(cuda.workspace());
  const detail::ColumnFinish finish{1.0f, s.queries == Reduce::mean ? s.window : 0, false, s.window};
  detail::with_plain_rows(cuda, x, longest, true, false, [&](const auto& plain) {
    detail::grouped_columns(cuda, where, plain, longest, s.window, s.group, finish, scores);
  });
}

static_assert(Scorer<WindowAttention, Cuda, LayerView<DenseKV<float>>>);

}  // namespace decant::kv

#endif
