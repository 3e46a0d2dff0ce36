// decant: SLQ, bit-widths per group of matrices such that a quantized model is lossless in a stated sense (Helcig,
// Kurtic, Alistarh: Statistically lossless quantization of large language models, arXiv 2605.02404). In order:
//   1. quantize every group at every width once (Gptq<Int<b>>, group 128, asymmetric), and write a function that
//      measures ear() and KL of the model with any choice of widths;
//   2. shapley_sensitivities (or linear_sensitivities, for previews);
//   3. distribution_lossless for a target EAR, or task_lossless for a target share of benchmark scores.
// evolve() needs no step 2. [ours] marks where the defaults differ from the paper, whose mode is
// SlqSearch{.monotone = false, .anchored = false, .checks = 0}.
#ifndef DECANT_QUANT_SLQ_HPP
#define DECANT_QUANT_SLQ_HPP

#include "gamma_law.hpp"
#include "slq_evolve.hpp"
#include "slq_search.hpp"
#include "slq_sensitivity.hpp"
#include "slq_table.hpp"

#endif
