/*
 * cli/cuda_library.h - where the programs find libtp-cuda.so (comm/cuda/library.h): the file that
 * TP_CUDA_LIBRARY names, or libtp-cuda.so beside the program, in ../lib or ../lib/tp from there, or
 * where the system's loader looks.
 */
#ifndef CLI_CUDA_LIBRARY_H
#define CLI_CUDA_LIBRARY_H

#include "comm/cuda/library.h"

/* Load the library. TP_E_NOTFOUND: there is none that can be used; the message says why. */
tp_status cuda_library_find(const struct cuda_library **out, struct tp_err *err);

#endif
