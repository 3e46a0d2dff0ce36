// Memory, atomics, control and the errors of the interpreter, from PTX written here.

#include "row.hpp"

using namespace ptx_test;

namespace {

// A kernel of one block with a pointer to `words` 32-bit words that all begin as `initial`.
struct Outcome {
  std::vector<std::uint32_t> words;
  std::vector<ptx::Report> reports;
};

Outcome run(const std::string& body, std::uint32_t threads = 32, std::size_t words = 64, std::uint32_t initial = 0) {
  ptx::Module module(
      ".version 8.8\n.target sm_90\n.address_size 64\n.global .align 4 .u32 table[4] = {10, 20, 30, 40};\n"
      ".func (.param .b32 result) twice(.param .b32 x) {\n.reg .b32 %r<2>;\nld.param.u32 %r0, [x];\nadd.u32 %r0, %r0, "
      "%r0;\n"
      "st.param.b32 [result], %r0;\nret;\n}\n"
      ".visible .entry k(.param .u64 memory) {\n.reg .b64 %rd<10>;\n.reg .b32 %r<20>;\n.reg .b16 %rs<4>;\n"
      ".reg .f32 %f<8>;\n.reg .pred %p<4>;\n"
      "ld.param.u64 %rd0, [memory];\nmov.u32 %r0, %tid.x;\nmad.wide.u32 %rd1, %r0, 4, %rd0;\n" +
      body + "\nret;\n}\n");
  std::byte* memory = ptx::memory().allocate(4 * words, ptx::AllocationKind::kDevice);
  for (std::size_t i = 0; i < words; ++i) std::memcpy(memory + 4 * i, &initial, 4);
  ptx::memory().mark_initialised(memory, 4 * words);
  ptx::clear_reports();
  ptx::options().quiet = true;
  const void* arguments[] = {&memory};
  ptx::LaunchConfiguration configuration;
  configuration.block.x = threads;
  ptx::launch(module, "k", configuration, arguments);
  ptx::options().quiet = false;
  Outcome outcome;
  outcome.words.resize(words);
  std::memcpy(outcome.words.data(), memory, 4 * words);
  outcome.reports = ptx::all_reports();
  ptx::clear_reports();
  ptx::memory().release(memory);
  return outcome;
}

std::string error_of(const std::string& body) {
  try {
    run(body);
  } catch (const ptx::Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("loads and stores of every width", "[ptx][memory]") {
  const Outcome outcome =
      run("mov.u32 %r1, 0x80ff7f01;\nst.global.u32 [%rd1], %r1;\nld.global.s8 %r2, [%rd1+2];\n"
          "ld.global.u8 %r3, [%rd1+3];\nld.global.s16 %r4, [%rd1+2];\nadd.u32 %r2, %r2, %r3;\n"
          "add.u32 %r2, %r2, %r4;\nst.global.u32 [%rd1], %r2;",
          1);
  CHECK(outcome.words[0] == static_cast<std::uint32_t>(-1 + 0x80 - 32513));
  const Outcome vectors =
      run("mov.u32 %r1, 7;\nst.global.v4.u32 [%rd0], {%r1, 8, 9, %r1};\n"
          "ld.global.v2.b64 {%rd2, %rd3}, [%rd0];\nst.global.v2.b64 [%rd0+16], {%rd3, %rd2};\n"
          "ld.global.v8.b32 {%r1,%r2,%r3,%r4,%r5,%r6,%r7,_}, [%rd0];\nst.global.u32 [%rd0+32], %r6;",
          1);
  CHECK(vectors.reports.empty());
  CHECK(vectors.words[3] == 7);
  CHECK(vectors.words[4] == 9);
  CHECK(vectors.words[7] == 8);
  CHECK(vectors.words[8] == 7);
}

TEST_CASE("atomics", "[ptx][atomic]") {
  CHECK(run("atom.global.add.u32 %r1, [%rd0], 3;").words[0] == 96);
  CHECK(run("red.global.max.s32 [%rd0], %r0;").words[0] == 31);
  CHECK(run("atom.global.inc.u32 %r1, [%rd0], 9;").words[0] == 2);  // 0..9 and around: 32 modulo 10
  CHECK(run("atom.global.dec.u32 %r1, [%rd0], 9;").words[0] == 8);
  CHECK(run("atom.global.cas.b32 %r1, [%rd0], %r0, 100;").words[0] == 100);  // lane 0 finds 0
  CHECK(run("atom.global.exch.b32 %r1, [%rd0], %r0; st.global.u32 [%rd1+128], %r1;").words[32 + 7] == 6);
  CHECK(run("atom.global.add.f32 %f1, [%rd0], 0f3FC00000;").words[0] == f32(48));
  CHECK(run("atom.global.add.noftz.f16x2 %r1, [%rd0], 0x3c004000;").words[0] == 0x50005400);
  CHECK(run("red.global.add.noftz.bf16x2 [%rd0], 0x3f804000;").words[0] == 0x42004280);
  CHECK(run("atom.global.or.b32 %r1, [%rd0], %r0;").words[0] == 31);
  CHECK(run("cvt.u64.u32 %rd2, %r0; atom.global.max.u64 %rd3, [%rd0], %rd2;").words[0] == 31);
  CHECK(run("red.global.add.v2.f32 [%rd0], {0f3F800000, 0f40000000};").words[1] == f32(64));
}

TEST_CASE("control flow", "[ptx][control]") {
  // A loop whose trip count differs by lane.
  const Outcome loop =
      run("mov.u32 %r1, 0; mov.u32 %r2, 0;\nL1: setp.ge.u32 %p1, %r1, %r0;\n@%p1 bra L2;\n"
          "add.u32 %r2, %r2, %r1; add.u32 %r1, %r1, 1; bra.uni L1;\nL2: st.global.u32 [%rd1], %r2;");
  for (std::uint32_t i = 0; i < 32; ++i) CHECK(loop.words[i] == i * (i - 1) / 2);
  const Outcome table =
      run("and.b32 %r1, %r0, 3;\nT: .branchtargets A, B, C, B;\nbrx.idx %r1, T;\n"
          "A: mov.u32 %r2, 1; bra E;\nB: mov.u32 %r2, 2; bra E;\nC: mov.u32 %r2, 3;\nE: st.global.u32 [%rd1], %r2;");
  CHECK(table.words[0] == 1);
  CHECK(table.words[3] == 2);
  CHECK(table.words[6] == 3);
  const Outcome call =
      run("{ .param .b32 p0; .param .b32 p1;\nst.param.b32 [p0], %r0;\ncall.uni (p1), twice, (p0);\n"
          "ld.param.b32 %r1, [p1]; }\nst.global.u32 [%rd1], %r1;");
  CHECK(call.words[21] == 42);
  const Outcome indirect =
      run("mov.u64 %rd2, twice;\n{ .param .b32 p0; .param .b32 p1;\nst.param.b32 [p0], %r0;\n"
          "P: .callprototype (.param .b32 _) _ (.param .b32 _);\ncall (p1), %rd2, (p0), P;\n"
          "ld.param.b32 %r1, [p1]; }\nst.global.u32 [%rd1], %r1;");
  CHECK(indirect.words[5] == 10);
  const Outcome global = run("mov.u64 %rd2, table;\nld.global.u32 %r1, [%rd2+8];\nst.global.u32 [%rd1], %r1;");
  CHECK(global.words[0] == 30);
}

TEST_CASE("warp-wide instructions", "[ptx][warp]") {
  CHECK(
      run("shfl.sync.up.b32 %r1|%p1, %r0, 1, 0, -1; selp.u32 %r1, %r1, 99, %p1; st.global.u32 [%rd1], %r1;").words[0] ==
      99);
  CHECK(run("shfl.sync.down.b32 %r1, %r0, 2, 31, -1; st.global.u32 [%rd1], %r1;").words[31] == 31);
  CHECK(run("shfl.sync.bfly.b32 %r1, %r0, 16, 31, -1; st.global.u32 [%rd1], %r1;").words[3] == 19);
  // Segments of eight lanes: mask 0x18 in bits 8 to 12.
  CHECK(run("shfl.sync.idx.b32 %r1, %r0, 2, 0x181f, -1; st.global.u32 [%rd1], %r1;").words[13] == 10);
  CHECK(run("setp.gt.u32 %p1, %r0, 29; vote.sync.ballot.b32 %r1, %p1, -1; st.global.u32 [%rd1], %r1;").words[0] ==
        0xc0000000);
  CHECK(run("setp.gt.u32 %p1, %r0, 29; vote.sync.any.pred %p2, !%p1, -1; selp.u32 %r1, 1, 2, %p2; st.global.u32 "
            "[%rd1], %r1;")
            .words[0] == 1);
  CHECK(run("and.b32 %r1, %r0, 3; match.any.sync.b32 %r2, %r1, -1; st.global.u32 [%rd1], %r2;").words[1] == 0x22222222);
  CHECK(run("match.all.sync.b32 %r2|%p1, %r0, -1; selp.u32 %r2, 1, %r2, %p1; st.global.u32 [%rd1], %r2;").words[1] ==
        0);
  CHECK(run("redux.sync.add.u32 %r1, %r0, -1; st.global.u32 [%rd1], %r1;").words[9] == 496);
  CHECK(run("sub.s32 %r1, %r0, 5; redux.sync.min.s32 %r2, %r1, -1; st.global.u32 [%rd1], %r2;").words[9] ==
        static_cast<std::uint32_t>(-5));
  CHECK(run("elect.sync %r1|%p1, -1; selp.u32 %r1, 1, 0, %p1; st.global.u32 [%rd1], %r1;").words[0] == 1);
  CHECK(run("setp.lt.u32 %p1, %r0, 4; @!%p1 bra L; activemask.b32 %r1; st.global.u32 [%rd1], %r1;\nL:").words[2] ==
        0xf);
}

TEST_CASE("what is not known is an error that names its line", "[ptx][errors]") {
  CHECK_THAT(error_of("frobnicate.u32 %r1, %r0;"), catch_compat::contains("unknown instruction"));
  CHECK_THAT(error_of("frobnicate.u32 %r1, %r0;"), catch_compat::contains("PTX line "));
  CHECK_THAT(error_of("add.frob.u32 %r1, %r0, 1;"), catch_compat::contains("'.frob'"));
  CHECK_THAT(error_of("popc.u16 %r1, %r0;"), catch_compat::contains("type .u16"));
  CHECK_THAT(error_of("add.u32 %r1, %r0;"), catch_compat::contains("operands"));
  CHECK_THAT(error_of("add.u64 %rd2, %rd1, %r0;"), catch_compat::contains("narrow"));
  CHECK_THAT(error_of("mov.u32 %r1, nothing;"), catch_compat::contains("unknown name"));
  CHECK_THAT(error_of("bra NOWHERE;"), catch_compat::contains("unknown label"));
}

TEST_CASE("reports say what, who and where", "[ptx][reports]") {
  const Outcome outside = run("st.global.u32 [%rd1+252], %r0;", 2);
  REQUIRE(outside.reports.size() == 1);
  CHECK(outside.reports[0].kind == ptx::ReportKind::kBounds);
  CHECK_THAT(outside.reports[0].message, catch_compat::contains("thread (1,0,0)"));
  CHECK_THAT(outside.reports[0].message, catch_compat::contains("st.global.u32 [%rd1+252], %r0"));
  CHECK(run("ld.global.u32 %r1, [%rd0+2];", 1).reports.at(0).kind == ptx::ReportKind::kAlignment);
  CHECK(run("st.global.u32 [%rd0], %r0;", 2).reports.at(0).kind == ptx::ReportKind::kRace);
  CHECK(run("trap;", 1).reports.at(0).kind == ptx::ReportKind::kTrap);
}
