// The text by which files name a packed format: a name and all of its parameters, as "int4:grid=zero_point,group=128",
// "nf4:block=64" or "q4_0".
#pragma once

#include <map>
#include <string>
#include <utility>

#include "json.hpp"

namespace runtime {

/// A name and parameters, in one spelling.
class FormatText {
 public:
  explicit FormatText(std::string name) : name_(std::move(name)) {}

  FormatText& with(const std::string& key, const std::string& value) {
    parameters_[key] = value;
    return *this;
  }
  FormatText& with(const std::string& key, std::int64_t value) { return with(key, std::to_string(value)); }

  std::string text() const {
    std::string all = name_;
    char separator = ':';
    for (const auto& [key, value] : parameters_) {
      all += separator + key + "=" + value;
      separator = ',';
    }
    return all;
  }

  /// FormatError naming `where` when the text is none.
  static FormatText parse(const std::string& text, const std::string& where) {
    const std::size_t colon = text.find(':');
    FormatText format(text.substr(0, colon));
    for (std::size_t at = colon; at != std::string::npos;) {
      const std::size_t end = text.find(',', at + 1);
      const std::string part = text.substr(at + 1, end == std::string::npos ? end : end - at - 1);
      const std::size_t equals = part.find('=');
      const bool ok = equals != std::string::npos && equals > 0 && equals + 1 < part.size() &&
                      format.parameters_.emplace(part.substr(0, equals), part.substr(equals + 1)).second;
      if (!ok) bad_format(where, "a format as \"int4:group=128,grid=zero_point\"", shown(Json(text)));
      at = end;
    }
    return format;
  }

  const std::string& name() const { return name_; }
  /// The same parameters under another name.
  FormatText named(std::string name) const {
    FormatText renamed = *this;
    renamed.name_ = std::move(name);
    return renamed;
  }

  /// Takes a parameter out; what is left at the end is one too many.
  std::string take(const std::string& key, const std::string& where) {
    const auto found = parameters_.find(key);
    if (found == parameters_.end()) bad_format(where, "a format with \"" + key + "=...\"", shown(Json(text())));
    std::string value = std::move(found->second);
    parameters_.erase(found);
    return value;
  }
  std::int64_t take_number(const std::string& key, const std::string& where) {
    const std::string value = take(key, where);
    const bool ok = !value.empty() && value.size() < 10 && value.find_first_not_of("0123456789") == std::string::npos;
    if (!ok) bad_format(where, "a format whose " + key + " is a number", shown(Json(value)));
    return std::stoll(value);
  }
  void require_empty(const std::string& where) const {
    if (!parameters_.empty())
      bad_format(where, "a format without \"" + parameters_.begin()->first + "\"", shown(Json(text())));
  }

 private:
  std::string name_;
  std::map<std::string, std::string> parameters_;
};

}  // namespace runtime
