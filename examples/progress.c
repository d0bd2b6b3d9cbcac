/*
 * examples/progress.c - the smallest trainer that tp-run can watch:
 *     cc progress.c -ltp-progress
 * One rank with a step every 50 ms and a loss that falls.
 */
#include <stdio.h>
#include <time.h>

#include <tp_progress.h>

int main(void)
{
    const struct timespec step_time = { .tv_nsec = 50 * 1000 * 1000 };
    struct tp_progress *p = tp_progress_open(0, 1);

    tp_progress_phase(p, TP_PHASE_TRAIN);
    for (int step = 0; step < 100; step++) {
        tp_progress_collective(p, 1);
        nanosleep(&step_time, NULL); /* a real trainer waits for the other ranks here */
        tp_progress_collective(p, 0);
        tp_progress_step(p, step + 1, 5.0 / (1 + step));
    }
    tp_progress_close(p);
    printf("100 steps\n");
    return 0;
}
