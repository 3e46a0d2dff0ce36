#include "lexer.hpp"

namespace ptx {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%' || c == '.';
}

bool is_name_part(char c) {
  return is_name_start(c) || is_digit(c);
}

class Lexer {
 public:
  Lexer(std::string_view text, int line) : text_(text), line_(line) {}

  std::vector<Token> run() {
    std::vector<Token> tokens;
    tokens.reserve(text_.size() / 5);
    for (skip_blank(); at_ < text_.size(); skip_blank()) tokens.push_back(next());
    tokens.push_back({TokenKind::kEnd, {}, line_});
    return tokens;
  }

 private:
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  void skip_blank() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
        ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\0') {
        ++at_;
      } else if (c == '/' && peek(1) == '/') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == '/' && peek(1) == '*') {
        skip_block_comment();
      } else {
        return;
      }
    }
  }

  void skip_block_comment() {
    for (at_ += 2; at_ < text_.size() && !(text_[at_] == '*' && peek(1) == '/'); ++at_)
      if (text_[at_] == '\n') ++line_;
    at_ = at_ + 2 < text_.size() ? at_ + 2 : text_.size();
  }

  Token next() {
    const std::size_t start = at_;
    const char c = text_[at_];
    if (c == '"') return string();
    if (is_digit(c)) {
      // Letters belong to a number: 0x1F, 0f3F800000, 42U. A '.' does too (1.5, 8.0 in .version).
      while (is_name_part(peek())) ++at_;
      return {TokenKind::kNumber, text_.substr(start, at_ - start), line_};
    }
    if (is_name_start(c)) {
      // A double colon is part of a modifier (L1::no_allocate); a single one ends a label.
      while (is_name_part(peek()) || (peek() == ':' && peek(1) == ':' && is_name_part(peek(2)))) {
        at_ += peek() == ':' ? 2 : 1;
      }
      return {TokenKind::kName, text_.substr(start, at_ - start), line_};
    }
    ++at_;
    return {TokenKind::kPunctuation, text_.substr(start, 1), line_};
  }

  Token string() {
    const std::size_t start = ++at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) throw Error(line_, "unterminated string");
    return {TokenKind::kString, text_.substr(start, at_++ - start), line_};
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view text, int first_line) {
  return Lexer(text, first_line).run();
}

}  // namespace ptx
