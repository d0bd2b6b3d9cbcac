/* tests/bench/bench_heartbeat.c - what a report of progress costs a rank, in nanoseconds per call.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/file_tree.h"
#include "core/heartbeat.h"

enum { CALLS = 5000000 };

int main(void)
{
    char dir[] = "/dev/shm/tp-bench-XXXXXX";
    struct tp_err err = { 0 };
    struct heartbeat *t = NULL;
    int64_t begin, pair, step;

    if (!mkdtemp(dir) || heartbeat_open(&t, dir, 0, 1, &err)) {
        fprintf(stderr, "bench_heartbeat: %s\n", err.msg);
        return 3;
    }
    begin = clock_ns();
    for (int i = 0; i < CALLS; i++) {
        heartbeat_collective(t, true);
        heartbeat_collective(t, false);
    }
    pair = clock_ns() - begin;
    begin = clock_ns();
    for (int i = 0; i < CALLS; i++)
        heartbeat_step(t, i, 1.0);
    step = clock_ns() - begin;
    printf("a collective, begin and end  %.1f ns\na step                       %.1f ns\n",
           (double)pair / CALLS, (double)step / CALLS);
    heartbeat_close(t, true);
    file_tree_remove(dir, &err);
    return 0;
}
