/* trainer/lr_schedule.c - see trainer/lr_schedule.h. */
#include "trainer/lr_schedule.h"

#include <math.h>

static const double PI = 3.141592653589793238462643383280;

double lr_schedule_at(const struct train_optimizer *o, int64_t step, int64_t steps)
{
    int64_t rest = steps - o->warmup;

    if (step < o->warmup)
        return o->lr * (double)(step + 1) / (double)o->warmup;
    if (rest < 1)
        rest = 1;
    return o->min_lr +
           (o->lr - o->min_lr) * (1 + cos(PI * (double)(step - o->warmup) / (double)rest)) / 2;
}
