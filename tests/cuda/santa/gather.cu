// sparse_gather and bernoulli_scores on the device against the CPU.

#include "catch_compat.hpp"
#include "decant/attention/santa_scores.cuh"
#include "decant/attention/sparse_gather.cuh"
#include "device_santa.cuh"
#include "unit/attention/row_lists.hpp"

using namespace decant;
using namespace decant::attention;

namespace attention_test {
namespace {

struct DeviceLists {
  DeviceBuffer<std::int32_t> indptr, rows;
  DeviceBuffer<float> weights;
  index_t per_row;

  explicit DeviceLists(const RowListsData& l) : indptr(l.indptr), rows(l.rows), weights(l.weights), per_row(l.per_row) {}
  RowLists views() const {
    return {indptr.view(indptr.size()), rows.view(rows.size()), weights.view(rows.size(), per_row)};
  }
};

template <class T, class C>
std::vector<float> gathered(Cuda& cuda, const Problem<T>& p, const C& cache, const RowListsData& lists) {
  const OnDevice<C> device(cache);
  const DeviceLists device_lists(lists);
  const DeviceBuffer<float> out(std::vector<float>(at(p.sequences() * p.query_heads() * p.value_dim), quiet_nan));
  sparse_gather(cuda, device.view, device_lists.views(), out.view(p.sequences(), p.query_heads(), p.value_dim));
  cuda.check();
  return out.download();
}

template <class T>
void against_cpu(const Problem<T>& p) {
  DeviceContext c;
  Cpu cpu;
  const DenseCache<T> dense(p);
  for (const bool shared : {true, false}) {
    INFO(name(dtype_of<T>) << " group " << p.group << " shared " << shared);
    const RowListsData lists(p, shared);
    std::vector<float> expected(at(p.sequences() * p.query_heads() * p.value_dim));
    sparse_gather(cpu, dense.view, lists.views(),
                  View<float, 3>(expected.data(), p.sequences(), p.query_heads(), p.value_dim));
    const std::vector<float> o = gathered(c.cuda, p, dense, lists);
    CHECK(oracle::relative_error(doubles(o), doubles(expected)) < 1e-6);
    CHECK(gathered(c.cuda, p, PagedCache<T>(p, 7), lists) == o);
  }
}

TEST_CASE("Cuda sparse_gather: the CPU's sums, from every layout in the same bits") {
  against_cpu(Problem<float>(2, 3, 4, 17, {200, 1, 0, 90}));
  against_cpu(Problem<bf16>(2, 11, 8, 136, {200, 1, 0, 90}));
}

TEST_CASE("Cuda sparse_gather: a weight of 0 still multiplies, one list does not see another, faults write nothing") {
  Problem<float> p(1, 2, 4, 8, {40, 20});
  DeviceContext c;
  RowListsData lists(p, true);
  lists.indptr = {0, 1, 2};
  lists.rows = {3, 5};
  lists.weights = {1, 0, 1, 1};
  p.value(0, 0, 3)[2] = quiet_nan;
  const std::vector<float> o = gathered(c.cuda, p, DenseCache<float>(p), lists);
  CHECK((std::isnan(o[2]) && std::isnan(o[8 + 2])));
  CHECK(o[8] == 0);
  CHECK(std::memcmp(o.data() + 16, p.value(1, 0, 5), 8 * sizeof(float)) == 0);

  const DenseCache<float> cache(p);
  const OnDevice<DenseCache<float>> device(cache);
  for (int which = 0; which < 5; ++which) {
    INFO(which);
    RowListsData bad = lists;
    if (which == 0) bad.rows[1] = 20;  // sequence 1 has 20 keys
    if (which == 1) bad.rows[0] = -1;
    if (which == 2) bad.indptr = {1, 1, 2};
    if (which == 3) bad.indptr = {0, 2, 1};
    if (which == 4) bad.indptr = {0, 1, 3};
    const DeviceLists device_lists(bad);
    const DeviceBuffer<float> out(std::vector<float>(2 * 2 * 8, 7.0f));
    sparse_gather(c.cuda, device.view, device_lists.views(), out.view(2, 2, 8));
    CHECK_THROWS_WITH(c.cuda.check(), catch_compat::contains("sparse_gather"));
    CHECK(out.download() == std::vector<float>(2 * 2 * 8, 7.0f));
  }
  const DeviceBuffer<float> out(2 * 2 * 8);
  const DeviceLists good(lists);
  CHECK_THROWS_AS(sparse_gather(c.cuda, device.view, good.views(), out.view(2, 2, 7)), ArgumentError);
  CHECK_THROWS_AS(sparse_gather(c.cuda, device.view, good.views(), out.view(2, 4, 8)), ArgumentError);
}

/// Keys of several sequences with the tokens of a feature together; unused slots are NaN.
template <class T>
struct FeatureMajor {
  std::vector<T> keys;
  std::vector<std::int32_t> indptr{0}, indices, last;
  index_t pages, heads, dim, page_size;

  FeatureMajor(const Problem<T>& p, index_t page) : heads(p.heads), dim(p.key_dim), page_size(page) {
    for (const index_t n : p.lengths) {
      const index_t used = (n + page - 1) / page;
      indptr.push_back(indptr.back() + static_cast<std::int32_t>(used));
      last.push_back(used == 0 ? -7 : static_cast<std::int32_t>(n - (used - 1) * page));
    }
    pages = indptr.back() + 2;
    indices.resize(at(pages));
    std::iota(indices.begin(), indices.end(), 0);
    std::shuffle(indices.begin(), indices.end(), std::mt19937(5));
    indices.resize(at(indptr.back()));
    keys = poison<T>(pages * heads * page * dim);
    for (index_t s = 0; s < p.sequences(); ++s)
      for (index_t h = 0; h < heads; ++h)
        for (index_t t = 0; t < p.lengths[at(s)]; ++t)
          for (index_t d = 0; d < dim; ++d) {
            const index_t at_page = indices[at(indptr[at(s)] + t / page)];
            keys[at(((at_page * heads + h) * dim + d) * page + t % page)] = p.key(s, h, t)[d];
          }
  }
  FeatureMajorKeys<T> views() const {
    return {View<const T, 4>(keys.data(), pages, heads, dim, page_size), View<const std::int32_t, 1>(indptr),
            View<const std::int32_t, 1>(indices), View<const std::int32_t, 1>(last)};
  }
};

template <class T>
struct DeviceFeatureMajor {
  DeviceBuffer<T> keys;
  DeviceBuffer<std::int32_t> indptr, indices, last;
  FeatureMajorKeys<T> view;

  explicit DeviceFeatureMajor(const FeatureMajor<T>& k)
      : keys(k.keys), indptr(k.indptr), indices(k.indices), last(k.last) {
    view = {keys.view(k.pages, k.heads, k.dim, k.page_size), indptr.view(indptr.size()), indices.view(indices.size()),
            last.view(last.size())};
  }
};

template <class T>
void scores_against_cpu(const Problem<T>& p, index_t page_size) {
  DeviceContext c;
  Cpu cpu;
  const FeatureMajor<T> keys(p, page_size);
  const DeviceFeatureMajor<T> device(keys);
  const index_t room = 100, sequences = p.sequences(), heads = p.query_heads();
  const std::vector<std::uint32_t> requests{4, 5, 6};
  const DeviceBuffer<std::uint32_t> device_requests(requests);
  const DeviceBuffer<float> q(p.q);
  for (const GroupDraws group : {GroupDraws::mean_group, GroupDraws::independent, GroupDraws::coupled})
    for (const bool strata : {true, false}) {
      INFO(name(dtype_of<T>) << " group draws " << static_cast<int>(group) << " strata " << strata);
      const BernoulliQuery a{.draws = 3, .strata = strata, .group = group, .seed = 3, .layer = 2};
      std::vector<float> expected(at(sequences * heads * room), -7.0f);
      std::vector<std::int32_t> features(at(sequences * p.heads));
      bernoulli_scores(cpu, a, p.views().rows, keys.views(), View<float, 3>(expected.data(), sequences, heads, room),
                       View<const std::uint32_t, 1>(requests),
                       View<std::int32_t, 2>(features.data(), sequences, p.heads));
      const DeviceBuffer<float> out(std::vector<float>(expected.size(), -7.0f));
      const DeviceBuffer<std::int32_t> read(sequences * p.heads);
      bernoulli_scores(c.cuda, a, View<const float, 3>(q.data(), sequences, heads, p.key_dim), device.view,
                       out.view(sequences, heads, room), device_requests.view(3), read.view(sequences, p.heads));
      c.cuda.check();
      CHECK(read.download() == features);
      const std::vector<float> o = out.download();
      double worst = 0;
      for (std::size_t i = 0; i < o.size(); ++i) {
        if (std::isnan(expected[i]) && std::isnan(o[i])) continue;
        const double off = std::abs(static_cast<double>(o[i]) - static_cast<double>(expected[i]));
        worst = off <= worst ? worst : off;
      }
      CHECK(worst < 1e-5);
    }
}

TEST_CASE("Cuda BernoulliQuery: the CPU's features and scores, over pages of any size") {
  Problem<float> p(2, 3, 20, 1, {90, 0, 33});
  p.query(2, 0)[4] = infinity;  // the first group of the last sequence gets NaN
  scores_against_cpu(p, 7);
  scores_against_cpu(Problem<bf16>(1, 6, 140, 1, {70, 5, 64}), 64);
}

TEST_CASE("Cuda BernoulliQuery: tables and room are checked, and nothing is written") {
  const Problem<float> p(1, 2, 8, 1, {30, 9});
  DeviceContext c;
  const DeviceBuffer<float> q(p.q);
  for (int which = 0; which < 4; ++which) {
    FeatureMajor<float> keys(p, 16);
    if (which == 0) keys.indices[1] = 99;
    if (which == 1) keys.last[0] = 17;
    if (which == 2) keys.indptr[1] = 7;
    const DeviceFeatureMajor<float> device(keys);
    const index_t room = which == 3 ? 29 : 30;
    const DeviceBuffer<float> out(std::vector<float>(2 * 2 * 30, 7.0f));
    bernoulli_scores(c.cuda, BernoulliQuery{}, View<const float, 3>(q.data(), 2, 2, 8), device.view,
                     View<float, 3>(out.data(), 2, 2, room));
    CHECK_THROWS_WITH(c.cuda.check(), catch_compat::contains(which == 3 ? "bernoulli_scores" : "FeatureMajorKeys"));
    CHECK(out.download() == std::vector<float>(2 * 2 * 30, 7.0f));
  }
}

}  // namespace
}  // namespace attention_test
