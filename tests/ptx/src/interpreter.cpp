#include "interpreter.hpp"

#include <cstdio>

#include "machine.hpp"

namespace ptx {
namespace {

// Blocks have serial numbers over all launches, so that records of earlier kernels need not be cleared.
std::uint32_t next_serial = 1;
std::uint64_t next_grid = 1;

// What cg::grid_group finds: the size of this structure and the counter of the grid's barrier.
constexpr std::size_t kWorkspaceBytes = 64;

}  // namespace

LaunchResult launch(Module& module, const std::string& kernel, const LaunchConfiguration& configuration,
                    const void* const* arguments) {
  const Program* program = module.kernel(kernel);
  if (!program) throw Error("no kernel " + kernel);
  Launch run;
  run.module = &module;
  run.program = program;
  run.grid = configuration.grid;
  run.block = configuration.block;
  run.dynamic_shared = configuration.dynamic_shared;
  run.cooperative = configuration.cooperative;
  run.max_resident = configuration.max_resident;
  run.grid_id = next_grid++;
  run.random_state = (options().seed * 0x9E3779B97F4A7C15ull + run.grid_id * 0xD1B54A32D192ED03ull) | 1;
  run.parameters.resize(program->parameter_bytes + 16);
  for (std::size_t i = 0; i < program->parameter_at.size(); ++i)
    std::memcpy(run.parameters.data() + program->parameter_at[i], arguments[i], program->kernel->parameters[i].bytes());

  const std::uint64_t blocks = configuration.grid.count();
  if (next_serial + blocks > 0xffffffffu) throw Error("too many blocks in one process");
  run.first_serial = next_serial;
  next_serial += static_cast<std::uint32_t>(blocks);

  if (run.cooperative) {
    run.cooperative_workspace = memory().allocate(kWorkspaceBytes, AllocationKind::kModule, "cooperative launch");
    std::memset(run.cooperative_workspace, 0, kWorkspaceBytes);
    const auto size = static_cast<std::uint32_t>(kWorkspaceBytes);
    std::memcpy(run.cooperative_workspace, &size, sizeof size);
    memory().mark_initialised(run.cooperative_workspace, kWorkspaceBytes);
  }
  if (options().verbose) {
    std::fprintf(stderr, "[ptx] launch %s grid (%u,%u,%u) block (%u,%u,%u) dynamic shared %zu\n", kernel.c_str(),
                 run.grid.x, run.grid.y, run.grid.z, run.block.x, run.block.y, run.block.z, run.dynamic_shared);
  }
  try {
    run_launch(run);
  } catch (...) {
    if (run.cooperative_workspace) memory().release(run.cooperative_workspace);
    throw;
  }
  if (run.cooperative_workspace) memory().release(run.cooperative_workspace);
  run.counters.launches = 1;
  kernel_counters()[kernel].add(run.counters);
  return {run.first_failure < 0, run.first_failure, run.stop};
}

}  // namespace ptx
