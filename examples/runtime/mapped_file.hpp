// A whole file, read-only, as memory: weights are read where the operating system puts them, and never copied.
#pragma once

#include <cstring>
#include <string>

#include <decant/codec/mapped_file.hpp>

namespace runtime {

using decant::codec::dkvc::MappedFile;

/// decant::FormatError with the system's reason when the file cannot be opened or is not a regular file.
inline MappedFile map_file(const std::string& path) {
  try {
    return MappedFile(path);
  } catch (const decant::codec::dkvc::IoError& error) {
    throw decant::FormatError(path + ": expected a readable file, got \"" + std::strerror(error.code()) + "\"");
  }
}

}  // namespace runtime
