// decant: DKVC, the container for KV caches, in memory: format, sections, reader and writer. Files (dkvc_file.hpp) and
// streams over a descriptor (dkvc_stream.hpp) need POSIX and are included by themselves.
#ifndef DECANT_CODEC_DKVC_HPP
#define DECANT_CODEC_DKVC_HPP

#include "dkvc_format.hpp"
#include "dkvc_reader.hpp"
#include "dkvc_section.hpp"
#include "dkvc_writer.hpp"

#endif
