/* tests/fakecuda/report.cc - messages about mistakes, lists of calls, random numbers. */
#include "tests/fakecuda/fake.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

namespace fake
{

/* By addr2line of binutils, which every compiler needs. Of functions that are inlined, the one that
 * is not of cuda_runtime.h or, in a translation of PTX, of instructions.h. */
const char *symbol_of(const void *pc)
{
    static char text[600];
    char command[700], function[256] = "?", line[256] = "?";
    Dl_info info;

    if (!pc || !dladdr(pc, &info))
        return "an unknown place";
    snprintf(command, sizeof command, "addr2line -C -f -s -i -e '%s' %#zx 2>/dev/null",
             info.dli_fname, (size_t)((const char *)pc - (const char *)info.dli_fbase));
    if (FILE *p = popen(command, "r")) {
        do {
            if (!fgets(function, sizeof function, p) || !fgets(line, sizeof line, p))
                break;
        } while (strstr(line, "cuda_runtime.h") || strstr(line, "instructions.h"));
        function[strcspn(function, "(\n")] = '\0';
        line[strcspn(line, " \n")] = '\0';
        pclose(p);
    }
    snprintf(text, sizeof text, "%s at %s", function, line);
    return text;
}

const char *linkage_name_of(const void *function)
{
    static char name[400];
    char command[700];
    Dl_info info;

    name[0] = '\0';
    if (!dladdr(function, &info))
        return name;
    snprintf(command, sizeof command, "addr2line -f -e '%s' %#zx 2>/dev/null", info.dli_fname,
             (size_t)((const char *)function - (const char *)info.dli_fbase));
    if (FILE *p = popen(command, "r")) {
        if (fgets(name, sizeof name, p))
            name[strcspn(name, "\n")] = '\0';
        pclose(p);
    }
    return name;
}

void report(const void *pc, const char *format, ...)
{
    char text[1000];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    fflush(stdout);
    fprintf(stderr, "fakecuda: %s\n", text);
    if (here.in_kernel) {
        fprintf(stderr, "fakecuda: by block %u, thread %u of %s\n", here.block, here.thread,
                symbol_of(here.kernel));
        if (pc)
            fprintf(stderr, "fakecuda: in %s\n", symbol_of((const char *)pc - 1));
    } else if (now_running.op) {
        fprintf(stderr, "fakecuda: by operation %u of stream %u, a %s\n", now_running.op,
                now_running.stream, now_running.name);
    }
    _exit(MISTAKE);
}

/* One write, because ranks share the file. */
void append_line(const char *variable, const char *format, ...)
{
    const char *path = getenv(variable);
    char line[400];
    va_list ap;
    int fd, n;

    if (!path || (fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) < 0)
        return;
    va_start(ap, format);
    n = vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    if (n >= (int)sizeof line || write(fd, line, (size_t)n) != n)
        report(nullptr, "%s cannot be written", path);
    close(fd);
}

/* splitmix64 (Steele, Lea and Flood 2014) */
static uint64_t state;

void seed(uint64_t seed)
{
    state = seed * 0x9e3779b97f4a7c15;
}

uint64_t random_below(uint64_t n)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (uint64_t)((unsigned __int128)(z ^ (z >> 31)) * n >> 64);
}

} // namespace fake
