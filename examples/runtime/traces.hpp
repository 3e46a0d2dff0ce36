// Public traces of LLM services as workloads of the simulator: Azure's (CSV: TIMESTAMP,ContextTokens,GeneratedTokens),
// BurstGPT's (CSV, columns by name, failed requests left out) and Mooncake's (JSON lines with ids of 512-token blocks,
// where equal ids mean equal prefixes). Errors name the file and the line.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include <decant/scheduling/workload.hpp>

#include "json.hpp"

namespace runtime {

/// A workload and the prefix digests that its requests point to; to be moved, not copied.
struct Trace {
  decant::scheduling::Workload requests;
  std::deque<std::vector<std::uint64_t>> chains;  // addresses stay

  Trace() = default;
  Trace(Trace&&) = default;
  Trace& operator=(Trace&&) = default;
};

namespace traces {

using decant::scheduling::Nanoseconds;
using decant::scheduling::SimulatedRequest;

/// The lines of a text with their numbers from 1; a carriage return at the end is dropped, and empty lines are.
template <class OnLine>
void for_each_line(std::string_view text, const OnLine& on_line) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!line.empty()) on_line(line, number);
  }
}

/// Fields without quotes: none of the traces has any.
inline std::vector<std::string> fields(std::string_view line) {
  std::vector<std::string> out(1);
  for (const char c : line) {
    if (c == ',') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

inline double number(const std::string& field, const std::string& where, const char* what, double most) {
  char* end = nullptr;
  const double value = std::strtod(field.c_str(), &end);
  const bool all = !field.empty() && *end == '\0';
  if (!all || !(value >= 0 && value <= most)) {
    bad_format(where, std::string(what) + " from 0 to " + std::to_string(static_cast<long long>(most)),
               shown(Json(field)));
  }
  return value;
}

inline std::uint32_t length(const std::string& field, const std::string& where, const char* what) {
  const double value = number(field, where, what, 1e8);
  if (value != std::floor(value)) bad_format(where, std::string("a whole ") + what, shown(Json(field)));
  return static_cast<std::uint32_t>(value);
}

inline SimulatedRequest request(double seconds, std::uint32_t prompt, std::uint32_t output) {
  SimulatedRequest r;
  r.info.arrival = static_cast<Nanoseconds>(std::llround(seconds * 1e9));
  r.info.prompt = prompt;
  r.generates(output);
  return r;
}

/// Days since 1970-01-01 of a date of the Gregorian calendar.
inline std::int64_t days(int year, int month, int day) {
  const int y = month <= 2 ? year - 1 : year, m = month <= 2 ? month + 9 : month - 3;
  return std::int64_t{365} * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719468;
}

/// "2023-11-16 18:17:03.9799600", seconds of which may have any digits, as nanoseconds since 1970.
inline std::int64_t timestamp(const std::string& field, const std::string& where) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, used = 0;
  double seconds = -1;
  const int got = std::sscanf(field.c_str(), "%4d-%2d-%2d%*1[ T]%2d:%2d:%lf%n", &year, &month, &day, &hour, &minute,
                              &seconds, &used);
  const bool valid = got == 6 && year >= 1970 && year < 3000 && month >= 1 && month <= 12 && day >= 1 && day <= 31 &&
                     hour >= 0 && hour < 24 && minute >= 0 && minute < 60 && seconds >= 0 && seconds < 61;
  const std::string rest = valid ? field.substr(static_cast<std::size_t>(used)) : field;
  if (!valid || !(rest.empty() || rest == "Z" || rest == "+00:00")) {
    bad_format(where, "a time as 2023-11-16 18:17:03.97", shown(Json(field)));
  }
  return (days(year, month, day) * 86400 + hour * 3600 + minute * 60) * 1'000'000'000 + std::llround(seconds * 1e9);
}

/// The position of a named column; FormatError without it.
inline std::size_t column(const std::vector<std::string>& header, const char* name, const std::string& where) {
  for (std::size_t i = 0; i < header.size(); ++i) {
    if (header[i] == name) return i;
  }
  bad_format(where, std::string("a column \"") + name + "\"", "none");
}

/// A CSV file with a header; every row has as many fields. row(fields, where).
template <class OnHeader, class OnRow>
void read_csv(std::string_view text, const std::string& name, const OnHeader& on_header, const OnRow& on_row) {
  std::size_t columns = 0;
  for_each_line(text, [&](std::string_view line, std::size_t number) {
    const std::string where = name + ":" + std::to_string(number);
    const auto row = fields(line);
    if (columns == 0) {
      columns = row.size();
      on_header(row, where);
      return;
    }
    if (row.size() != columns) bad_format(where, std::to_string(columns) + " fields", std::to_string(row.size()));
    on_row(row, where);
  });
  if (columns == 0) bad_format(name, "a header", "an empty file");
}

/// Tags by position; instants since the first arrival.
inline void finish(Trace& trace, const std::string& name) {
  if (trace.requests.empty()) bad_format(name, "at least one request", "none");
  Nanoseconds first = ~Nanoseconds{0};
  for (const SimulatedRequest& r : trace.requests) first = std::min(first, r.info.arrival);
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    trace.requests[i].info.tag = i;
    trace.requests[i].info.arrival -= first;
  }
}

}  // namespace traces

/// Azure's LLM inference traces of 2023 and 2024. Requests without output tokens are left out. `name`: for errors.
inline Trace azure_trace(std::string_view text, const std::string& name) {
  Trace trace;
  std::size_t at[3] = {};
  traces::read_csv(
      text, name,
      [&](const std::vector<std::string>& header, const std::string& where) {
        at[0] = traces::column(header, "TIMESTAMP", where);
        at[1] = traces::column(header, "ContextTokens", where);
        at[2] = traces::column(header, "GeneratedTokens", where);
      },
      [&](const std::vector<std::string>& row, const std::string& where) {
        const std::int64_t time = traces::timestamp(row[at[0]], where);
        const std::uint32_t prompt = traces::length(row[at[1]], where, "number of tokens");
        const std::uint32_t output = traces::length(row[at[2]], where, "number of tokens");
        if (prompt == 0 || output == 0) return;
        trace.requests.push_back(traces::request(0, prompt, output));
        trace.requests.back().info.arrival = static_cast<std::uint64_t>(time);
      });
  traces::finish(trace, name);
  return trace;
}

/// BurstGPT's. Rows with 0 response tokens are failures and left out.
inline Trace burstgpt_trace(std::string_view text, const std::string& name) {
  Trace trace;
  std::size_t at[3] = {};
  traces::read_csv(
      text, name,
      [&](const std::vector<std::string>& header, const std::string& where) {
        at[0] = traces::column(header, "Timestamp", where);
        at[1] = traces::column(header, "Request tokens", where);
        at[2] = traces::column(header, "Response tokens", where);
      },
      [&](const std::vector<std::string>& row, const std::string& where) {
        const double seconds = traces::number(row[at[0]], where, "seconds", 1e9);
        const std::uint32_t prompt = traces::length(row[at[1]], where, "number of tokens");
        const std::uint32_t output = traces::length(row[at[2]], where, "number of tokens");
        if (prompt > 0 && output > 0) trace.requests.push_back(traces::request(seconds, prompt, output));
      });
  traces::finish(trace, name);
  return trace;
}

/// Mooncake's: {"timestamp": ms, "input_length", "output_length", "hash_ids": one per 512 tokens, begun ones too}. The
/// digests of whole blocks become the requests' chains; an id of a block that is not full names no reusable block.
inline Trace mooncake_trace(std::string_view text, const std::string& name) {
  constexpr std::uint32_t block = 512;
  Trace trace;
  traces::for_each_line(text, [&](std::string_view line, std::size_t number) {
    const std::string where = name + ":" + std::to_string(number);
    const JsonObject row(parse_object(line, where), where);
    const double seconds = static_cast<double>(row.integer("timestamp", 0, 1'000'000'000'000)) * 1e-3;
    const auto prompt = static_cast<std::uint32_t>(row.integer("input_length", 1, 100'000'000));
    const auto output = static_cast<std::uint32_t>(row.integer("output_length", 0, 100'000'000));
    if (!row.has("hash_ids") || !row.json()["hash_ids"].is_array()) bad_format(where, "an array \"hash_ids\"", "none");
    const Json& ids = row.json()["hash_ids"];
    if (ids.size() != (prompt + block - 1) / block) {
      bad_format(where, std::to_string((prompt + block - 1) / block) + " ids", std::to_string(ids.size()));
    }
    std::vector<std::uint64_t>& chain = trace.chains.emplace_back();
    for (const Json& id : ids) {
      if (!id.is_number_unsigned()) bad_format(where, "whole numbers of at least 0 in \"hash_ids\"", shown(id));
      if (chain.size() < prompt / block) chain.push_back(id.get<std::uint64_t>());
    }
    if (output == 0) return;
    trace.requests.push_back(traces::request(seconds, prompt, output));
    trace.requests.back().info.chain = {chain.data(), static_cast<decant::index_t>(chain.size())};
  });
  traces::finish(trace, name);
  return trace;
}

inline Trace read_trace(const std::string& path, const std::string& format) {
  const std::string text = read_text_file(path);
  if (format == "azure") return azure_trace(text, path);
  if (format == "burstgpt") return burstgpt_trace(text, path);
  decant::require(format == "mooncake", "runtime", "--trace-format", "azure, burstgpt or mooncake", format);
  return mooncake_trace(text, path);
}

}  // namespace runtime
