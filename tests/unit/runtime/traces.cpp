// Readers of public traces: what a few rows mean, and that hostile files are refused with the place of the fault.
#include "traces.hpp"

#include <string>

#include "catch_compat.hpp"

namespace trace_tests {

using catch_compat::contains;
using namespace runtime;

TEST_CASE("traces: Azure's rows, times across midnight and with any digits") {
  const Trace t = azure_trace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.5,374,44\n2023-11-17 00:00:00.0000001,396,109\n"
      "2024-02-29T12:00:00Z,5,0\n\n2023-11-16 23:59:59.4999999,1,1\r\n",
      "a.csv");
  REQUIRE(t.requests.size() == 3);
  CHECK(t.requests[0].info.arrival == 100);
  CHECK(t.requests[0].info.prompt == 374);
  CHECK(t.requests[0].output == 44);
  CHECK(t.requests[0].info.output == decant::scheduling::LengthEstimate::exactly(44));
  CHECK(t.requests[1].info.arrival == 500'000'200);
  CHECK(t.requests[1].info.tag == 1);
  CHECK(t.requests[2].info.arrival == 0);
  CHECK(traces::days(1970, 1, 1) == 0);
  CHECK(traces::days(2000, 3, 1) - traces::days(2000, 2, 28) == 2);
  CHECK(traces::days(2100, 3, 1) - traces::days(2100, 2, 28) == 1);
}

TEST_CASE("traces: BurstGPT's columns by name, failures left out") {
  const std::string rows = "5,ChatGPT,472,18,490,Conversation log\n45.5,ChatGPT,1087,0,1087,API log\n6,GPT-4,417,276,693,API log\n";
  const Trace t = burstgpt_trace("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + rows, "b.csv");
  REQUIRE(t.requests.size() == 2);
  CHECK(t.requests[0].info.arrival == 0);
  CHECK(t.requests[1].info.arrival == 1'000'000'000);
  CHECK(t.requests[1].info.prompt == 417);
  const Trace with_sessions = burstgpt_trace(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n1,,2,m,7,3,10,x\n", "b");
  CHECK(with_sessions.requests[0].info.prompt == 7);
}

TEST_CASE("traces: Mooncake's ids become chains of whole blocks") {
  const Trace t = mooncake_trace(
      "{\"timestamp\": 27, \"input_length\": 1030, \"output_length\": 52, \"hash_ids\": [0, 5, 2]}\n"
      "{\"timestamp\": 3027, \"input_length\": 1024, \"output_length\": 9, \"hash_ids\": [0, 7]}\n",
      "m");
  REQUIRE(t.requests.size() == 2);
  REQUIRE(t.requests[0].info.chain.size() == 2);
  CHECK(t.requests[0].info.chain[1] == 5);
  CHECK(t.requests[1].info.chain.size() == 2);
  CHECK(t.requests[1].info.arrival == 3'000'000'000);
}

TEST_CASE("traces: hostile files name their place") {
  const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  const auto refused = [](const auto& read, const std::string& text, const std::string& place) {
    INFO(text);
    CHECK_THROWS_WITH(read(text, "f"), contains(place.c_str()));
    CHECK_THROWS_AS(read(text, "f"), decant::FormatError);
  };
  refused(azure_trace, "", "f");
  refused(azure_trace, "TIMESTAMP,ContextTokens\n", "GeneratedTokens");
  refused(azure_trace, azure, "at least one request");
  for (const char* row : {"2023-11-16 18:15:46,1", "2023-11-16 18:15:46,1,2,3", "2023-13-16 18:15:46,1,2", "noon,1,2",
                          "2023-11-16 18:15:46,-1,2", "2023-11-16 18:15:46,1.5,2", "2023-11-16 18:15:46,1e99,2",
                          "2023-11-16 18:15:46,nan,2", "2023-11-16 18:15:46,,2", "2023-11-16 18:15:46.1x,1,2"}) {
    refused(azure_trace, azure + row + "\n", "f:2");
  }
  const std::string burst = "Timestamp,Request tokens,Response tokens\n";
  for (const char* row : {"x,1,2", "1,1", "inf,1,2", "1,99999999999,2"}) refused(burstgpt_trace, burst + row, "f:2");
  for (const char* row : {"[]", "{", "{\"timestamp\": 1}", "{\"timestamp\": -1, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1]}",
                          "{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": []}",
                          "{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [\"a\"]}",
                          "{\"timestamp\": 1, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [1, -2]}",
                          "{\"timestamp\": 1, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": []}"}) {
    refused(mooncake_trace, row, "f:1");
  }
}

}  // namespace trace_tests
