// What the programs print: tables for people, JSON files for machines.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <decant/core/error.hpp>

#include "json.hpp"

namespace runtime {

/// "%.*f" as a string.
inline std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

/// The middle one, of an even number the mean of the two in the middle; at least one value.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// A Markdown table; columns are as wide as their widest cell, and all but the first `left` are right-aligned.
inline std::string markdown_table(const std::vector<std::vector<std::string>>& rows, std::size_t left = 1) {
  std::vector<std::size_t> widths(rows[0].size(), 3);
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = row[c].size() > widths[c] ? row[c].size() : widths[c];
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    text += "|";
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      const std::string pad(widths[c] - rows[r][c].size(), ' ');
      text += c < left ? " " + rows[r][c] + pad + " |" : " " + pad + rows[r][c] + " |";
    }
    text += "\n";
    if (r > 0) continue;
    text += "|";
    for (std::size_t c = 0; c < widths.size(); ++c) {
      text += c < left ? std::string(widths[c] + 2, '-') + "|" : std::string(widths[c] + 1, '-') + ":|";
    }
    text += "\n";
  }
  return text;
}

/// Whether a file can be written there, asked before long work. ArgumentError naming the option when not.
inline void require_writable(const std::string& path, const char* option) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  decant::require(::access(folder.c_str(), W_OK) == 0, "runtime", option, "a file in a folder that can be written to",
                  path);
}

/// A file that appears under its name when commit() is called; without that, there is none, and what was there before
/// stays. decant::Error when the system refuses.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path)
      : path_(path), temporary_(path + ".tmp." + std::to_string(::getpid())), file_(temporary_, std::ios::binary) {
    check();
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() {
    if (!temporary_.empty()) std::remove(temporary_.c_str());
  }

  void write(const void* bytes, std::size_t size) {
    file_.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
    check();
  }
  void commit() {
    file_.close();
    check();
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail();
    temporary_.clear();
  }

 private:
  void check() {
    if (!file_) fail();
  }
  [[noreturn]] void fail() { throw decant::Error("cannot write " + path_); }

  std::string path_;
  std::string temporary_;
  std::ofstream file_;
};

/// Writes the whole file or, on an error, none of it. What is no regular file (/dev/stdout) is written to directly.
inline void write_json(const std::string& path, const Json& json) {
  struct stat status {};
  const bool direct = ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
  const std::string text = json.dump(2, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
  if (direct) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    if (!file) throw decant::Error("cannot write " + path);
    return;
  }
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace runtime
