#pragma once
// PTX text to tokens. An opcode with its modifiers ("ld.global.L2::128B.v4.f32") and a directive (".reg") are one token
// each.

#include <string_view>
#include <vector>

#include "types.hpp"

namespace ptx {

enum class TokenKind : std::uint8_t { kName, kNumber, kString, kPunctuation, kEnd };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string_view text;  // into the module's text, which outlives every token
  int line = 0;

  bool is(std::string_view expected) const { return kind != TokenKind::kString && text == expected; }
};

// `first_line` is the line number of text's first character.
std::vector<Token> tokenize(std::string_view text, int first_line = 1);

}  // namespace ptx
