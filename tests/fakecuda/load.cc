/*
 * tests/fakecuda/load.cc - CUDA loads a kernel when it is first launched, unless
 * CUDA_MODULE_LOADING=EAGER, and this "may require context synchronization" (CUDA's programming
 * guide, lazy loading): the host then waits for all that is queued. Here it does so by chance.
 */
#include <cstdlib>
#include <cstring>
#include <set>

#include "tests/fakecuda/stream.h"

namespace fake
{

void load(const void *kernel)
{
    static auto &loaded = *new std::set<const void *>;
    const char *how = getenv("CUDA_MODULE_LOADING");

    if (loaded.insert(kernel).second && !(how && strcmp(how, "EAGER") == 0) && random_below(2))
        run_all();
}

} // namespace fake
