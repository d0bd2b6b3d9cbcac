/*
 * tests/fault/preload.h - what libraries share that are preloaded and see a program's changes of
 * the file system.
 *
 * preload.c defines the C library's calls on a path, each in terms of one of the calls that end in
 * `at`. A library defines those: mkdirat, unlinkat, renameat2, symlinkat, linkat, and
 * preload_open_at for all that open.
 *
 * Calls go to the kernel by system call number, so the libraries do not depend on the C library's
 * version.
 */
#ifndef TESTS_FAULT_PRELOAD_H
#define TESTS_FAULT_PRELOAD_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#pragma GCC visibility push(hidden)

/* Until the constructor of preload.c has run, calls only pass through. A sanitizer's runtime starts
 * earlier and may create the folder of its log. */
extern bool preload_ready;

/* open, openat and creat. */
int preload_open_at(int dirfd, const char *path, int flags, mode_t mode);

/* Whether a path is the folder that the environment variable names, or below it. */
bool preload_is_under(const char *path, const char *variable);

/* The absolute form of a path that is relative to a directory's descriptor. */
void preload_path_at(char out[PATH_MAX], int dirfd, const char *path);

/* The path of a descriptor, or "". */
void preload_path_of(char out[PATH_MAX], int fd);

/* The first word of the file that the environment variable names, shared by all processes that map
 * it. NULL: there is no such file. One file per library. */
_Atomic(uint64_t) *preload_word(const char *variable);

#pragma GCC visibility pop

#endif
