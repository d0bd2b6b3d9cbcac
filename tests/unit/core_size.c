/* tests/unit/core_size.c - sizes are read in binary units and written with three digits. */
#include "core/size.h"

#include <criterion/criterion.h>

Test(size, reads_every_way_to_write_a_unit)
{
    static const struct {
        const char *text;
        int64_t bytes;
    } cases[] = {
        { "0", 0 },
        { "7", 7 },
        { "512B", 512 },
        { "64k", 65536 },
        { "64M", 64 << 20 },
        { "1G", 1 << 30 },
        { "5GB", 5LL << 30 },
        { "2TiB", 2LL << 40 },
        { "1.5g", 3LL << 29 },
        { "1P", 1LL << 50 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tp_err err = { 0 };
        int64_t bytes = -1;

        cr_expect_eq(size_parse(&bytes, cases[i].text, &err), TP_OK, "%s", err.msg);
        cr_expect_eq(bytes, cases[i].bytes, "%s is %lld", cases[i].text, (long long)bytes);
    }
}

Test(size, refuses_what_is_not_a_size)
{
    static const char *const bad[] = { "",    "M",   "-1", "1X",   "1MX",   "64 M", "1BB",
                                       "inf", "nan", "M1", "1e30", "8192P", " 1M" };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct tp_err err = { 0 };
        int64_t bytes = -1;

        cr_expect_eq(size_parse(&bytes, bad[i], &err), TP_E_USAGE, "'%s'", bad[i]);
        cr_expect_eq(bytes, -1);
    }
}

Test(size, writes_three_significant_digits)
{
    static const struct {
        int64_t bytes;
        const char *text;
    } cases[] = {
        { 0, "0 B" },
        { 1023, "1023 B" },
        { 1024, "1.00 KiB" },
        { 10 << 10, "10.0 KiB" },
        { 3LL << 29, "1.50 GiB" },
        { 1023LL << 20, "1023 MiB" },
        { (1LL << 40) - 1, "1.00 TiB" },
        { INT64_MAX, "8192 PiB" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[SIZE_TEXT_MAX];

        cr_expect_str_eq(size_format(text, cases[i].bytes), cases[i].text);
    }
}
