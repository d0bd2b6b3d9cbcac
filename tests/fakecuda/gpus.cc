/* tests/fakecuda/gpus.cc - see tests/fakecuda/gpus.h. */
#include "tests/fakecuda/gpus.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <unistd.h>
#include <vector>

#include "tests/fakecuda/fake.h"
#include "tests/fakecuda/stream.h"

namespace fake
{

static std::vector<int> visible; /* the machine's numbers of the GPUs that the process sees */
static int capability = 90;
static int used = -1; /* the machine's number, -1: none yet */

void gpus_set(int count)
{
    visible.clear();
    for (int i = 0; i < count; i++)
        visible.push_back(i);
}

static void select(const char *list, int count)
{
    char *end;

    visible.clear();
    for (;; list = end + 1) {
        long number = strtol(list, &end, 10);

        if (end == list || number < 0 || number >= count)
            return;
        visible.push_back((int)number);
        if (*end != ',')
            return;
    }
}

void gpus_begin()
{
    const char *count = getenv("FAKECUDA_GPUS"), *list = getenv("CUDA_VISIBLE_DEVICES");
    const char *named = getenv("FAKECUDA_CAPABILITY");

    if (named)
        gpus_be(atoi(named));

    if (count && list)
        select(list, atoi(count));
    else
        gpus_set(count ? atoi(count) : 1);
}

int gpus_count()
{
    return (int)visible.size();
}

int gpus_capability()
{
    return capability;
}

cudaError_t gpus_busy()
{
    const char *error = getenv("FAKECUDA_BUSY");

    return error ? (cudaError_t)atoi(error) : cudaSuccess;
}

void gpus_be(int now)
{
    capability = now;
}

int gpus_number(int ordinal)
{
    return visible[(size_t)ordinal];
}

int gpus_used()
{
    return used < 0 ? visible[0] : used;
}

/* For as long as the slowest test. */
static void wait_for_file()
{
    const char *path = getenv("FAKECUDA_OPENS_AFTER");
    const struct timespec t = { 0, 1000000 };

    for (int i = 0; path && access(path, F_OK) != 0; i++) {
        if (i == 120000)
            report(nullptr, "a GPU is opened, and %s does not appear", path);
        nanosleep(&t, nullptr);
    }
}

void gpus_use(int ordinal)
{
    const char *text = getenv("FAKECUDA_FAIL");
    int number, error, after;

    if (used == visible[(size_t)ordinal])
        return;
    wait_for_file();
    used = visible[(size_t)ordinal];
    append_line("FAKECUDA_USED", "%d %d\n", (int)getpid(), used);
    if (text && sscanf(text, "%d %d %d", &number, &error, &after) == 3 && number == used)
        fail_at((cudaError_t)error, after);
}

/* Whether a GPU that a variable names does something for the first n times only. */
static bool does_again(const char *variable, int *times)
{
    const char *text = getenv(variable);
    int number, n;

    return !text || sscanf(text, "%d %d", &number, &n) != 2 || number != used || (*times)++ < n;
}

bool gpus_accept_nccl()
{
    static int calls;

    return does_again("FAKECUDA_FAIL_NCCL", &calls);
}

void gpus_fail_in_nccl()
{
    static int calls;

    if (!does_again("FAKECUDA_FAIL_IN_NCCL", &calls))
        device_failure = cudaErrorLaunchFailure;
}

bool gpus_have_network()
{
    static int operations;

    return does_again("FAKECUDA_LOSE_NCCL", &operations);
}

bool gpus_end_aborts()
{
    const char *number = getenv("FAKECUDA_HANG_ABORT");

    return !number || atoi(number) != used;
}

} // namespace fake
