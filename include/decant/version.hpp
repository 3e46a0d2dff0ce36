// decant: the version, the only place where it is written. Macros only.
#ifndef DECANT_VERSION_HPP
#define DECANT_VERSION_HPP

#define DECANT_VERSION_MAJOR 0
#define DECANT_VERSION_MINOR 1
#define DECANT_VERSION_PATCH 0

/// major * 10000 + minor * 100 + patch, usable in the preprocessor.
#define DECANT_VERSION (DECANT_VERSION_MAJOR * 10000 + DECANT_VERSION_MINOR * 100 + DECANT_VERSION_PATCH)

#endif
