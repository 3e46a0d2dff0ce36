// The vocabulary of the example checkpoint: a token is a byte, and a prompt begins with the beginning-of-sequence
// token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config.hpp"

namespace runtime {

using Token = std::int32_t;
using Tokens = std::vector<Token>;

/// ArgumentError unless the model's tokens are bytes.
inline void require_byte_vocabulary(const Config& config) {
  decant::require(config.vocab == 256, "runtime::tokenizer", "vocab_size", "256 (a token is a byte)", config.vocab);
}

inline Tokens bytes_to_tokens(std::string_view text) {
  Tokens tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

/// The text as a prompt: the beginning-of-sequence token, then its bytes.
inline Tokens prompt_tokens(const Config& config, std::string_view text) {
  Tokens tokens = bytes_to_tokens(text);
  tokens.insert(tokens.begin(), static_cast<Token>(config.bos));
  return tokens;
}

inline std::string tokens_to_bytes(const Tokens& tokens) {
  std::string text;
  for (const Token t : tokens) text += static_cast<char>(static_cast<unsigned char>(t));
  return text;
}

/// For a terminal: printable ASCII and line breaks as they are, everything else as \xNN, so that no byte that a model
/// writes can move the cursor or change a setting.
inline std::string escaped(std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte >= 0x20 && byte < 0x7f) || byte == '\n') {
      out += c;
    } else {
      out += "\\x";
      out += digits[byte >> 4];
      out += digits[byte & 15];
    }
  }
  return out;
}

}  // namespace runtime
