// The kernels of sampling, for the table of what they take. Never run.
#include "decant/sampling/draw.cuh"
#include "decant/sampling/mixture.cuh"
#include "decant/sampling/process.cuh"
#include "decant/sampling/rejection.cuh"

using decant::View;
namespace sampling = decant::sampling;

void instantiate(decant::Cuda& cuda) {
  const View<const float, 2> rows;
  process(cuda, sampling::Processing{}, rows, sampling::TokenCounts{}, View<float, 2>{},
          View<sampling::RowStatus, 1>{});
  penalise(cuda, sampling::Processing{}, View<float, 2>{}, sampling::TokenCounts{}, View<sampling::RowStatus, 1>{});
  sampling::draw(cuda, rows, {}, {});
  sampling::draw(cuda, sampling::LogitRows{}, {}, {});
  sampling::race(cuda, rows, {}, {});
  sampling::race(cuda, sampling::LogitRows{}, {}, {});
  draw_by_rejection(cuda, sampling::Processing{}, rows, {}, {});
  sampling::group(cuda, {}, {}, {});
}
