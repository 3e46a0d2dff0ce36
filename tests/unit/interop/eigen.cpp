// Eigen matrices as views and back: the same memory, every storage order.
#include "decant/interop/eigen.hpp"

#include <type_traits>

#include "catch_compat.hpp"

namespace {

using decant::View;

template <class M>
void shares_memory() {
  M m(3, 4);
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 4; ++j) m(i, j) = static_cast<float>(10 * i + j);
  }
  const View<float, 2> v = decant::to_view(m);
  REQUIRE((v.extent(0) == 3 && v.extent(1) == 4 && v(2, 3) == 23.0f));
  v(1, 2) = -1;
  REQUIRE(m(1, 2) == -1.0f);
  const M& constant = m;
  const View<const float, 2> c = decant::to_view(constant);
  REQUIRE(c(2, 0) == 20.0f);
  auto block = m.block(1, 1, 2, 2);
  const View<float, 2> part = decant::to_view(block);
  REQUIRE(part(1, 1) == 22.0f);
  REQUIRE(decant::to_eigen(v).isApprox(m));
  decant::to_eigen(v)(0, 0) = 77;
  REQUIRE(m(0, 0) == 77.0f);
  REQUIRE(decant::to_eigen(part).sum() == block.sum());
}

TEST_CASE("Eigen matrices and views share memory") {
  shares_memory<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>();
  shares_memory<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>>();
}

TEST_CASE("Eigen vectors are views of rank 1") {
  Eigen::VectorXd v = Eigen::VectorXd::LinSpaced(5, 0, 4);
  static_assert(std::is_same_v<decltype(decant::to_view(v)), View<double, 1>>);
  REQUIRE(decant::to_view(v)[3] == 3.0);
  Eigen::MatrixXd m = Eigen::MatrixXd::Identity(3, 3);
  auto row = m.row(1);
  REQUIRE(decant::to_view(row)[1] == 1.0);
  REQUIRE(decant::to_view(row).stride(0) == 3);
  REQUIRE(decant::to_eigen(decant::to_view(row)).sum() == 1.0);
  const double one = 1;
  REQUIRE(decant::to_eigen(View<const double, 1>(&one, {4}, {0})).sum() == 4.0);
  double some[2] = {};
  REQUIRE_THROWS_AS(decant::to_eigen(View<double, 1>(some + 1, {2}, {-1})), decant::ArgumentError);
}

}  // namespace
