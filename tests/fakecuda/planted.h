/*
 * tests/fakecuda/planted.h - what the programs of planted*.cu share: each file has many, of which
 * the command line names one.
 */
#ifndef TESTS_FAKECUDA_PLANTED_H
#define TESTS_FAKECUDA_PLANTED_H

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

struct planted_program {
    const char *name;
    void (*run)();
};

/* Run the program that the command line names, and print how the device has ended; otherwise print
 * the names of all. Returns the exit code of main. */
template <size_t n>
static int planted_run(const planted_program (&programs)[n], int argc, char **argv)
{
    for (const planted_program &p : programs)
        if (argc == 2 && strcmp(argv[1], p.name) == 0) {
            p.run();
            printf("ended: %s\n", cudaGetErrorString(cudaDeviceSynchronize()));
            return 0;
        }
    for (const planted_program &p : programs)
        puts(p.name);
    return 2;
}

#endif
