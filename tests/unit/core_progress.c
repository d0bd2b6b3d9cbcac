/* tests/unit/core_progress.c - the progress line has the total and the rate, and is printed only
 * when asked.
 */
#include "core/progress.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Instead of libc's: a clock that stands still at this second, if it is not 0. */
static time_t now;

int clock_gettime(clockid_t id, struct timespec *t)
{
    if (now == 0)
        return (int)syscall(SYS_clock_gettime, id, t);
    *t = (struct timespec){ .tv_sec = now };
    return 0;
}

static int64_t sent_bytes(void)
{
    return 5 << 20;
}

/* What an operation of 3 MiB prints on stderr, which is not a terminal here. */
static void print(char *text, size_t size, enum progress_style style, bool ok, const char *note)
{
    FILE *f = tmpfile();
    int saved = dup(STDERR_FILENO);
    struct progress *p;
    size_t n;

    cr_assert(f && saved >= 0 && dup2(fileno(f), STDERR_FILENO) >= 0);
    p = progress_new("reshard", 0, style);
    if (style == PROGRESS_JSON) {
        progress_sent(p, sent_bytes);
        progress_action(p, "cloning", PROGRESS_CLONED, 100);
        progress_add_as(p, PROGRESS_COPIED, 40);
        progress_add(p, 60);
        progress_action(p, "copying", PROGRESS_COPIED, 0);
    }
    progress_total(p, 3 << 20);
    for (int i = 0; i < 3; i++)
        progress_add(p, 1 << 20);
    if (note)
        progress_note(p, "%s", note);
    progress_end(p, ok);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(f);
    n = fread(text, 1, size - 1, f);
    text[n] = 0;
    fclose(f);
}

Test(progress, the_last_line_has_total_and_rate)
{
    char text[512];

    print(text, sizeof text, PROGRESS_TEXT, true, NULL);
    cr_expect_eq(strncmp(text, "reshard: 3.00 MiB in ", 21), 0, "%s", text);
    cr_expect(strstr(text, "/s\n"), "%s", text);
    cr_expect_null(strchr(text, '\r'), "no redrawn line in a log: %s", text);
}

static struct progress *shared;
static pthread_t adder;

static void *add_later(void *unused)
{
    progress_add(shared, 7);
    return unused;
}

/* Called by progress_action, which prints the end of the action before: bytes that are added now
 * have to wait for it. */
static int64_t add_meanwhile(void)
{
    static bool started;

    if (!started) {
        started = true;
        cr_assert_eq(pthread_create(&adder, NULL, add_later, NULL), 0);
        nanosleep(&(struct timespec){ .tv_nsec = 200 * 1000 * 1000 }, NULL);
    }
    return 0;
}

Test(progress, bytes_that_wait_for_the_next_action_belong_to_it)
{
    char text[2048] = "";
    FILE *f = tmpfile();
    int saved = dup(STDERR_FILENO);

    cr_assert(f && saved >= 0 && dup2(fileno(f), STDERR_FILENO) >= 0);
    shared = progress_new("reshard", 0, PROGRESS_JSON);
    progress_action(shared, "cloning", PROGRESS_CLONED, 100);
    progress_add(shared, 100);
    progress_sent(shared, add_meanwhile);
    progress_action(shared, "copying", PROGRESS_COPIED, 7);
    pthread_join(adder, NULL);
    progress_end(shared, true);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    rewind(f);
    cr_assert_gt(fread(text, 1, sizeof text - 1, f), 0);
    fclose(f);
    cr_expect(strstr(text, "\"bytes_copied\": 7, \"bytes_cloned\": 100"), "%s", text);
}

Test(progress, prints_nothing_when_quiet_or_failed)
{
    char text[512];

    print(text, sizeof text, PROGRESS_QUIET, true, NULL);
    cr_expect_str_eq(text, "");
    print(text, sizeof text, PROGRESS_TEXT, false, NULL);
    cr_expect_str_eq(text, "");
}

Test(progress, a_note_is_a_line_without_control_characters_also_when_quiet)
{
    char text[512];

    print(text, sizeof text, PROGRESS_QUIET, true, "step 7 is\n\x1b[31m damaged");
    cr_expect_str_eq(text, "reshard: step 7 is\\n\\x1b[31m damaged\n");
}

Test(progress, for_scripts_it_is_an_object_per_line_at_the_end_of_each_action)
{
    const char first[] = "{\"progress\": \"reshard\", \"action\": \"cloning\", "
                         "\"bytes_done\": 100, \"bytes_total\": 100, \"bytes_per_s\": ";
    char text[1024], *second;

    print(text, sizeof text, PROGRESS_JSON, true, NULL);
    second = strchr(text, '\n') + 1;
    cr_expect_eq(strncmp(text, first, strlen(first)), 0, "%s", text);
    cr_expect(
        strstr(text, "\"bytes_copied\": 40, \"bytes_cloned\": 60, \"bytes_sent\": 5242880}\n") <
            second,
        "%s", text);
    cr_expect(strstr(second, "\"action\": \"copying\", \"bytes_done\": 3145728, ") != NULL, "%s",
              text);
    cr_expect(strstr(second, "\"seconds_left\": 0.0, \"bytes_copied\": 3145768, ") != NULL, "%s",
              text);
    cr_expect(strchr(second, '\n') == second + strlen(second) - 1);
    print(text, sizeof text, PROGRESS_JSON, false, "a sentence");
    cr_expect(strstr(text, "}\nreshard: a sentence\n") != NULL, "%s", text);
}

Test(progress, accepts_null)
{
    progress_note(NULL, "nothing");
    progress_total(NULL, 1);
    progress_sent(NULL, sent_bytes);
    progress_action(NULL, "copying", PROGRESS_COPIED, 1);
    progress_add(NULL, 1);
    progress_end(NULL, true);
}

/* What is drawn of an operation on a terminal with so many columns. */
static void draw(char *text, size_t size, enum progress_style style, unsigned short columns)
{
    const struct winsize w = { .ws_row = 10, .ws_col = columns };
    const struct timespec longer_than_a_pause = { .tv_nsec = 150000000 };
    int saved = dup(STDERR_FILENO), terminal = posix_openpt(O_RDWR | O_NOCTTY), end;
    struct progress *p;
    size_t n = 0;

    cr_assert(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    cr_assert(end >= 0 && saved >= 0 && ioctl(end, TIOCSWINSZ, &w) == 0);
    cr_assert(dup2(end, STDERR_FILENO) >= 0);
    p = progress_new("resharding", 0, style);
    progress_action(p, "copying", PROGRESS_COPIED, 64 << 20);
    nanosleep(&longer_than_a_pause, NULL);
    progress_add(p, 10 << 20);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    for (text[0] = 0; !strstr(text, "\033[K"); text[n] = 0) { /* it may come in parts */
        ssize_t more = read(terminal, text + n, size - 1 - n);

        cr_assert(more > 0);
        n += (size_t)more;
    }
    progress_erase(p);
    close(saved);
    close(end);
    close(terminal);
}

Test(progress, the_line_is_cut_to_the_width_of_the_terminal)
{
    char text[512];

    draw(text, sizeof text, PROGRESS_TEXT, 41);
    cr_expect_str_eq(text, "\rresharding: copying 10.0 MiB of 64.0 MiB\033[K");
    draw(text, sizeof text, PROGRESS_TEXT, 200);
    cr_expect(strstr(text, "(16 %), ") && strstr(text, " s left\033[K"), "%s", text);
}

/* What is printed of an operation that has taken so many seconds for 10 of 30 bytes. */
static void print_slow(char *text, size_t size, time_t seconds)
{
    FILE *f = tmpfile();
    int saved = dup(STDERR_FILENO);
    struct progress *p;
    size_t n;

    cr_assert(f && saved >= 0 && dup2(fileno(f), STDERR_FILENO) >= 0);
    now = 1000;
    p = progress_new("resharding", 30, PROGRESS_TEXT);
    now += seconds;
    progress_add(p, 10);
    progress_end(p, true);
    now = 0;
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(f);
    n = fread(text, 1, size - 1, f);
    text[n] = 0;
    fclose(f);
}

Test(progress, long_durations_are_in_minutes_hours_and_days)
{
    static const struct {
        time_t seconds;
        const char *left, *took;
    } table[] = { { 20, ", 40 s left\n", " in 20.00 s, " },
                  { 45, ", 2 min left\n", " in 45.00 s, " },
                  { 90, ", 3 min left\n", " in 2 min, " },
                  { 7270, ", 4 h 2 min left\n", " in 2 h 1 min, " },
                  { 90000, ", 2 d 2 h left\n", " in 1 d 1 h, " } };
    char text[512];

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        print_slow(text, sizeof text, table[i].seconds);
        cr_expect(strstr(text, table[i].left) && strstr(text, table[i].took), "%s", text);
    }
}
