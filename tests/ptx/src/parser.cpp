#include <bit>
#include <charconv>
#include <cstdlib>

#include "ast.hpp"
#include "lexer.hpp"

namespace ptx {
namespace {

std::vector<std::string_view> split_dots(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t dot = text.find('.');
    parts.push_back(text.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    text.remove_prefix(dot + 1);
  }
}

class Parser {
 public:
  Parser(std::string_view text, int first_line) : text_(text), tokens_(tokenize(text, first_line)) {}

  ModuleText module();
  std::vector<BodyItem> body();

 private:
  const Token& peek(std::size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool at_end() const { return peek().kind == TokenKind::kEnd; }

  bool accept(std::string_view text) {
    if (!peek().is(text)) return false;
    take();
    return true;
  }

  void expect(std::string_view text) {
    if (!accept(text)) fail("expected '" + std::string(text) + "', got '" + std::string(peek().text) + "'");
  }

  std::string_view name() {
    if (peek().kind != TokenKind::kName) fail("expected a name, got '" + std::string(peek().text) + "'");
    return take().text;
  }

  [[noreturn]] void fail(const std::string& what) const { throw Error(peek().line, what); }

  std::int64_t integer();
  Operand number(bool negative);
  Operand operand();
  Operand scalar();
  Operand address();
  Operand list(std::string_view open, std::string_view close);

  Variable variable(Space space);
  std::vector<Variable> parameters();
  Function function(bool is_entry);
  Dim3 dimensions();
  void initial_value(Variable& variable, const Token& start);
  void section();
  void file(ModuleText& module);
  void skip_to(std::string_view text) {
    while (!at_end() && !accept(text)) take();
  }

  BodyItem registers();
  BodyItem statement();
  void location();

  std::string_view text_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  SourcePlace place_;
};

// ---- operands

Operand Parser::number(bool negative) {
  const Token token = take();
  std::string_view text = token.text;
  Operand result;
  const auto hexadecimal = [&](std::string_view digits) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (error != std::errc{} || end != digits.data() + digits.size())
      throw Error(token.line, "malformed number '" + std::string(text) + "'");
    return value;
  };
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'f' || text[1] == 'F')) {
    result.kind = Operand::Kind::kFloat32;
    result.bits = hexadecimal(text.substr(2));
    if (negative) result.bits ^= 0x80000000u;
    return result;
  }
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'd' || text[1] == 'D')) {
    result.kind = Operand::Kind::kFloat64;
    result.bits = hexadecimal(text.substr(2));
    if (negative) result.bits ^= std::uint64_t{1} << 63;
    return result;
  }
  const bool is_hexadecimal = text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
  if (!is_hexadecimal && text.find_first_of(".eE") != std::string_view::npos) {
    result.kind = Operand::Kind::kFloat64;
    result.bits = std::bit_cast<std::uint64_t>(std::strtod(std::string(text).c_str(), nullptr) * (negative ? -1 : 1));
    return result;
  }
  if (text.back() == 'U') text.remove_suffix(1);
  int base = 10;
  std::string_view digits = text;
  if (is_hexadecimal) {
    base = 16;
    digits.remove_prefix(2);
  } else if (text.size() > 2 && text[0] == '0' && (text[1] == 'b' || text[1] == 'B')) {
    base = 2;
    digits.remove_prefix(2);
  } else if (text.size() > 1 && text[0] == '0') {
    base = 8;
    digits.remove_prefix(1);
  }
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc{} || end != digits.data() + digits.size())
    throw Error(token.line, "malformed number '" + std::string(token.text) + "'");
  result.kind = Operand::Kind::kInteger;
  result.bits = negative ? 0 - value : value;
  return result;
}

std::int64_t Parser::integer() {
  const bool negative = accept("-");
  if (peek().kind != TokenKind::kNumber) fail("expected a number, got '" + std::string(peek().text) + "'");
  return static_cast<std::int64_t>(number(negative).bits);
}

Operand Parser::scalar() {
  if (accept("!")) {
    Operand result = scalar();
    result.negated = true;
    return result;
  }
  if (accept("-")) return number(true);
  if (peek().kind == TokenKind::kNumber) return number(false);
  Operand result;
  result.name = name();
  if (result.name == "_") return result;
  result.kind = Operand::Kind::kName;
  if (accept("+")) result.offset = integer();
  return result;
}

Operand Parser::address() {
  Operand result;
  result.kind = Operand::Kind::kAddress;
  expect("[");
  if (peek().kind == TokenKind::kNumber) {
    result.bits = number(false).bits;
  } else {
    result.name = name();
    if (accept("+")) {
      result.offset = integer();
    } else if (peek().is("-")) {
      result.offset = integer();
    }
  }
  expect("]");
  return result;
}

Operand Parser::list(std::string_view open, std::string_view close) {
  Operand result;
  result.kind = Operand::Kind::kVector;
  expect(open);
  while (!accept(close)) {
    result.elements.push_back(operand());
    accept(",");
    if (at_end()) fail("unclosed list");
  }
  return result;
}

Operand Parser::operand() {
  if (peek().is("[")) return address();
  if (peek().is("{")) return list("{", "}");
  if (peek().is("(")) return list("(", ")");
  return scalar();
}

// ---- bodies

void Parser::location() {
  SourcePlace place;
  place.file = static_cast<int>(integer());
  place.line = static_cast<int>(integer());
  integer();  // column
  // An inlined call: ", function_name $L, inlined_at file line column". The outermost place is not needed.
  if (accept(",")) {
    while (!at_end() && !peek().is("inlined_at")) take();
    if (accept("inlined_at")) {
      integer();
      integer();
      integer();
    }
  }
  place_ = place;
}

BodyItem Parser::registers() {
  BodyItem item;
  item.kind = BodyItem::Kind::kRegisters;
  const std::string_view type_text = name();
  const Type type = type_from_name(type_text.substr(1));
  if (type == Type::kNone) fail("unknown register type '" + std::string(type_text) + "'");
  do {
    RegisterDeclaration declaration;
    declaration.type = type;
    declaration.name = name();
    if (accept("<")) {
      declaration.count = static_cast<int>(integer());
      expect(">");
    }
    item.registers.push_back(declaration);
  } while (accept(","));
  expect(";");
  return item;
}

BodyItem Parser::statement() {
  BodyItem item;
  Statement& result = item.statement;
  const Token start = peek();
  result.line = start.line;
  result.place = place_;
  if (accept("@")) {
    result.predicate_negated = accept("!");
    result.predicate = name();
  }
  std::vector<std::string_view> parts = split_dots(name());
  result.opcode = parts.front();
  result.modifiers.assign(parts.begin() + 1, parts.end());
  while (!peek().is(";")) {
    if (at_end()) fail("expected ';'");
    result.operands.push_back(operand());
    if (accept("|")) {
      result.has_second_destination = true;
    } else if (!peek().is(";")) {
      expect(",");
    }
  }
  const Token end = take();
  result.text = std::string_view(start.text.data(), static_cast<std::size_t>(end.text.data() - start.text.data()));
  return item;
}

std::vector<BodyItem> Parser::body() {
  std::vector<BodyItem> items;
  const auto push = [&](BodyItem::Kind kind) -> BodyItem& {
    items.emplace_back().kind = kind;
    return items.back();
  };
  while (!at_end()) {
    if (accept("{")) {
      push(BodyItem::Kind::kOpen);
    } else if (accept("}")) {
      push(BodyItem::Kind::kClose);
    } else if (accept(";")) {
    } else if (accept(".loc")) {
      location();
    } else if (accept(".reg")) {
      items.push_back(registers());
    } else if (accept(".pragma")) {
      skip_to(";");
    } else if (peek().is(".shared") || peek().is(".local") || peek().is(".param")) {
      const std::string_view space = take().text;
      Variable declared = variable(space == ".shared"  ? Space::kShared
                                   : space == ".local" ? Space::kLocal
                                                       : Space::kParam);
      expect(";");
      push(BodyItem::Kind::kVariable).variable = std::move(declared);
    } else if (peek().kind == TokenKind::kName && peek(1).is(":")) {
      const std::string_view label = name();
      take();
      if (accept(".branchtargets") || accept(".calltargets")) {
        BodyItem& item = push(BodyItem::Kind::kTargets);
        item.label = label;
        do item.targets.push_back(name());
        while (accept(","));
        expect(";");
      } else if (accept(".callprototype")) {
        BodyItem& item = push(BodyItem::Kind::kPrototype);
        item.label = label;
        if (peek().is("(")) item.prototype.returns = parameters();
        name();  // "_"
        if (peek().is("(")) item.prototype.parameters = parameters();
        skip_to(";");
      } else {
        push(BodyItem::Kind::kLabel).label = label;
      }
    } else if (peek().is("@") || peek().kind == TokenKind::kName) {
      if (peek().text.front() == '.') fail("unknown directive '" + std::string(peek().text) + "'");
      items.push_back(statement());
    } else {
      fail("unexpected '" + std::string(peek().text) + "'");
    }
  }
  return items;
}

// ---- declarations

// After the state space: [.align n] [.v2|.v4] .type [.ptr ...] name [dims]
Variable Parser::variable(Space space) {
  Variable result;
  result.space = space;
  result.line = peek().line;
  std::size_t vector = 1;
  bool aligned = false;
  while (peek().kind == TokenKind::kName && peek().text.front() == '.') {
    const std::string_view word = take().text.substr(1);
    const Type type = type_from_name(word);
    if (type != Type::kNone) {
      result.type = type;
    } else if (word == "align") {
      const std::size_t alignment = static_cast<std::size_t>(integer());
      // On a .ptr parameter the alignment is the pointee's.
      if (!result.is_pointer) {
        result.alignment = alignment;
        aligned = true;
      }
    } else if (word == "ptr") {
      result.is_pointer = true;
    } else if (word == "v2" || word == "v4") {
      vector = word == "v2" ? 2 : 4;
    } else if (result.is_pointer && (word == "global" || word == "const" || word == "shared" || word == "local")) {
    } else if (word == "attribute") {
      list("(", ")");
    } else {
      fail("unknown attribute '." + std::string(word) + "' of a variable");
    }
  }
  result.name = name();
  const std::size_t element = std::max<std::size_t>(size_of(result.type), 1);
  if (!aligned) result.alignment = element * vector;
  result.count = vector;
  while (accept("[")) {
    result.count *= peek().is("]") ? 0 : static_cast<std::size_t>(integer());
    expect("]");
  }
  return result;
}

std::vector<Variable> Parser::parameters() {
  std::vector<Variable> result;
  expect("(");
  while (!accept(")")) {
    if (accept(".reg")) fail("register parameters of functions are not supported");
    expect(".param");
    result.push_back(variable(Space::kParam));
    accept(",");
  }
  return result;
}

Dim3 Parser::dimensions() {
  Dim3 result;
  result.x = static_cast<std::uint32_t>(integer());
  if (accept(",")) result.y = static_cast<std::uint32_t>(integer());
  if (accept(",")) result.z = static_cast<std::uint32_t>(integer());
  return result;
}

Function Parser::function(bool is_entry) {
  Function result;
  result.is_entry = is_entry;
  if (!is_entry && peek().is("(")) result.returns = parameters();
  result.name = std::string(name());
  if (peek().is("(")) result.parameters = parameters();
  while (!peek().is("{") && !peek().is(";")) {
    if (accept(".maxntid")) {
      result.max_threads = dimensions();
    } else if (accept(".reqntid")) {
      result.required_threads = dimensions();
    } else if (accept(".minnctapersm") || accept(".maxnreg") || accept(".maxnctapersm")) {
      integer();
    } else if (accept(".pragma")) {
      skip_to(";");
    } else if (accept(".noreturn")) {
    } else {
      fail("unknown directive '" + std::string(peek().text) + "' of function " + result.name);
    }
  }
  if (accept(";")) return result;
  const Token open = take();
  int depth = 1;
  const Token* close = &open;
  while (depth > 0) {
    if (at_end()) fail("unclosed body of " + result.name);
    close = &take();
    if (close->is("{")) ++depth;
    if (close->is("}")) --depth;
  }
  const char* first = open.text.data() + 1;
  result.body_text = std::string_view(first, static_cast<std::size_t>(close->text.data() - first));
  result.body_line = open.line;
  return result;
}

void Parser::initial_value(Variable& variable, const Token&) {
  const auto element = [&] {
    // generic(symbol): the generic address; ours are the same for global and constant data.
    if (accept("generic")) {
      expect("(");
      Operand result = scalar();
      expect(")");
      if (accept("+")) result.offset += integer();
      return result;
    }
    return scalar();
  };
  if (!accept("{")) {
    variable.initial_value.push_back(element());
    return;
  }
  int depth = 1;
  while (depth > 0) {
    if (at_end()) fail("unclosed initial value");
    if (accept("{")) {
      ++depth;
    } else if (accept("}")) {
      --depth;
    } else if (!accept(",")) {
      variable.initial_value.push_back(element());
    }
  }
}

void Parser::section() {
  skip_to("{");
  skip_to("}");
}

void Parser::file(ModuleText& module) {
  const int index = static_cast<int>(integer());
  module.files[index] = std::string(take().text);
  while (accept(",")) integer();  // time stamp and size
}

ModuleText Parser::module() {
  ModuleText result;
  while (!at_end()) {
    bool is_extern = false;
    while (peek().is(".visible") || peek().is(".extern") || peek().is(".weak") || peek().is(".common"))
      is_extern = take().is(".extern") || is_extern;
    if (accept(".version")) {
      const std::string version(take().text);
      result.version_major = std::atoi(version.c_str());
      result.version_minor = std::atoi(version.c_str() + version.find('.') + 1);
    } else if (accept(".target")) {
      const std::string target(name());
      result.target = std::atoi(target.c_str() + target.find('_') + 1);
      while (accept(",")) name();
    } else if (accept(".address_size")) {
      if (integer() != 64) fail("only 64-bit addresses are supported");
    } else if (accept(".file")) {
      file(result);
    } else if (accept(".section")) {
      section();
    } else if (accept(".pragma")) {
      skip_to(";");
    } else if (accept(".alias")) {
      const std::string alias(name());
      expect(",");
      result.aliases[alias] = std::string(name());
      expect(";");
    } else if (peek().is(".entry") || peek().is(".func")) {
      const bool is_entry = take().is(".entry");
      while (accept(".noreturn") || accept(".attribute")) {
        if (peek().is("(")) list("(", ")");
      }
      result.functions.push_back(function(is_entry));
    } else if (peek().is(".global") || peek().is(".const") || peek().is(".shared")) {
      const std::string_view space = take().text;
      const Token start = peek();
      Variable declared = variable(space == ".global"  ? Space::kGlobal
                                   : space == ".const" ? Space::kConst
                                                       : Space::kShared);
      declared.is_extern = is_extern;
      if (accept("=")) initial_value(declared, start);
      expect(";");
      result.variables.push_back(std::move(declared));
    } else {
      fail("unexpected '" + std::string(peek().text) + "' at module scope");
    }
  }
  return result;
}

}  // namespace

ModuleText parse_module(std::string_view text) {
  return Parser(text, 1).module();
}

std::vector<BodyItem> parse_body(std::string_view body_text, int first_line) {
  return Parser(body_text, first_line).body();
}

}  // namespace ptx
