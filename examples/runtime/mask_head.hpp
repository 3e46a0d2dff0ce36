// MaskHead: drafts of several tokens from one forward with mask tokens (mask_draft.safetensors, written by
// examples/model/train_mask_draft.py): the rows that stand for masks in the place of embeddings, and the adapter that
// turns the states of the last token and of the masks above a lower layer into logits.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <decant/speculative/tree.hpp>

#include "draft_head.hpp"

namespace runtime {

class MaskHead {
 public:
  /// FormatError: not such a file, or for another model.
  MaskHead(const Model& model, const std::string& path)
      : MaskHead(model, std::make_shared<const DraftFile>(model, path)) {}

  index_t layers() const { return adapter_.layers(); }
  /// How many tokens are drafted at most: the first from the last token's own row.
  index_t drafts() const { return count_ + 1; }
  /// [drafts() - 1, hidden]
  View<const float, 2> masks() const { return View<const float, 2>(rows_.data(), count_, hidden_); }

  /// states [rows, hidden] above layer layers(), of the last token and of the masks from the first on; logits
  /// [rows, vocab] of the token after the last one and of those behind it.
  void operator()(decant::Cpu& cpu, View<const float, 2> states, View<float, 2> logits) const {
    adapter_(cpu, states, logits);
  }

 private:
  MaskHead(const Model& model, const std::shared_ptr<const DraftFile>& file)
      : adapter_(model, file), count_(file->rows("masks")), hidden_(model.config.hidden) {
    const index_t most = decant::speculative::max_tree_nodes - 2;
    if (count_ > most)
      bad_format(file->where("masks"), "at most " + std::to_string(most) + " rows", std::to_string(count_));
    Tensor masks = file->get("masks", {count_, hidden_});
    masks.shape = {count_ * hidden_};
    rows_ = widened(masks);
  }

  DraftHead adapter_;
  index_t count_, hidden_;
  std::vector<float> rows_;
};

}  // namespace runtime
