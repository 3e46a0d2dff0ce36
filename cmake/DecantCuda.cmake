# CUDA for decant's own tests and benchmarks (DECANT_CUDA=ON, the preset cuda). Programs carry PTX and machine code and
# link the shared runtime, so that the same binary runs on a GPU and, its PTX, on the interpreter of tests/ptx.
find_program(DECANT_NVCC nvcc PATHS /usr/local/cuda/bin REQUIRED)
set(CMAKE_CUDA_COMPILER "${DECANT_NVCC}")
set(CMAKE_CUDA_ARCHITECTURES 90)  # for CMake's own check of the compiler
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()
enable_language(CUDA)
set(CMAKE_CUDA_ARCHITECTURES OFF)  # targets say what they are built for

set(DECANT_GPU_ARCHITECTURE 90 CACHE STRING "Compute capability that CUDA programs are built for")
option(DECANT_GPU_CODE "Also generate machine code, which a GPU wants and the interpreter does not need" OFF)
set(decant_gpu_code compute_${DECANT_GPU_ARCHITECTURE})
if(DECANT_GPU_CODE)
  string(APPEND decant_gpu_code ,sm_${DECANT_GPU_ARCHITECTURE})
endif()
# What every CUDA program of ours is built with: no flag that a user would need too.
# (The language by option: CMake 3.25 knows no default for nvcc 13 and leaves CMAKE_CUDA_STANDARD out.)
set(decant_cuda_language -std=c++20 -Werror all-warnings -Xcompiler -Wall,-Wextra)
set(decant_cuda_options ${decant_cuda_language} -no-compress -lineinfo
    -gencode arch=compute_${DECANT_GPU_ARCHITECTURE},code=[${decant_gpu_code}])
# For programs with large kernels that run for a moment: on the interpreter, optimising takes longer than it saves. (The
# next level, max, inlines nothing, and the interpreter takes eight times as long.)
set(decant_cuda_quick)
if(NOT DECANT_GPU_CODE)
  set(decant_cuda_quick --Ofast-compile=mid)
endif()
add_custom_target(decant_cuda_programs)

# decant_cuda_program(TARGET SOURCE...): a program with device code.
function(decant_cuda_program target)
  add_executable(${target} ${ARGN})
  target_link_libraries(${target} PRIVATE decant::decant)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${decant_cuda_options}>)
  add_dependencies(decant_cuda_programs ${target})
endfunction()
