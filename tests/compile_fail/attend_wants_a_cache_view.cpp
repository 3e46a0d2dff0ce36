// attend() says in words that its cache is no CacheView, at the call and not deep inside the kernels.
// expect: no match(ing|ed) function for call to .*attend
// expect: CacheView
#include <decant/attention/dense.hpp>
#include <decant/kv/dense_kv.hpp>

struct NoCache {
  int kv_heads() const { return 1; }
};

void call(decant::Cpu& cpu, decant::View<const float, 3> q, decant::View<float, 3> out,
          const decant::kv::DenseKV<const decant::bf16>& cache) {
#ifdef MUST_FAIL
  (void)cache;
  decant::attention::attend(cpu, decant::attention::Dense{}, q, NoCache{}, out);
#else
  decant::attention::attend(cpu, decant::attention::Dense{}, q, cache, out);
#endif
}
