/* tests/unit/core_clock.c - the clocks advance, in the units that their names say. */
#include "core/clock.h"

#include <criterion/criterion.h>
#include <time.h>
#include <unistd.h>

Test(clock, seconds_and_nanoseconds_come_from_the_same_clock)
{
    double seconds = clock_seconds();
    int64_t ns = clock_ns();

    cr_assert_float_eq((double)ns / 1e9, seconds, 1.0);
    usleep(2000);
    cr_assert_geq(clock_ns() - ns, 2000000);
    cr_assert_geq(clock_seconds() - seconds, 0.002);
}

Test(clock, cpu_time_grows_with_work_and_not_with_sleep)
{
    double before = clock_cpu_seconds(), after;

    usleep(50000);
    after = clock_cpu_seconds();
    cr_assert_lt(after - before, 0.045, "sleeping took %g s of CPU time", after - before);
    while (clock_cpu_seconds() - after < 0.001)
        ; /* asking is work too */
    cr_assert_geq(clock_cpu_seconds(), after + 0.001);
}

Test(clock, wall_clock_is_the_time_of_day)
{
    cr_assert_float_eq(clock_wall_seconds(), (double)time(NULL), 2.0);
}

Test(clock, a_duration_is_shown_in_its_units)
{
    static const struct {
        double seconds;
        const char *text;
    } table[] = {
        { -1, "0.0 s" },
        { 0.84, "0.8 s" },
        { 9.96, "10 s" },
        { 42, "42 s" },
        { 59.6, "1 min" },
        { 720, "12 min" },
        { 12000, "3 h 20 min" },
        { 86399, "1 d 0 h" },
        { 187200, "2 d 4 h" },
        { 3600, "1 h 0 min" },
        { 1e300, "11574074074 d 2 h" },
    };
    char text[CLOCK_TEXT_MAX];

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        cr_expect_str_eq(clock_format_duration(text, table[i].seconds), table[i].text);
}
