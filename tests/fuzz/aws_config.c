/* tests/fuzz/aws_config.c - the files ~/.aws/credentials and ~/.aws/config. The first byte of the
 * input says which one the rest is. What is accepted must be fit for a header of HTTP. */
#include "storage/aws_config.h"
#include "tests/fuzz/fuzz.h"

static void check_value(const char *value, size_t size)
{
    fuzz_must(memchr(value, 0, size) != NULL, "a value without an end");
    for (; *value; value++)
        fuzz_must(*value > ' ' && *value < 127, "a value that is not a header");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = { "credentials", "config" };
    static const char keys[] = "[default]\naws_access_key_id = a\naws_secret_access_key = b\n";
    static char paths[2][128];
    const uint8_t first = fuzz_take(&data, &size);
    const struct aws_config_environment env = { .profile = first & 2 ? "p" : NULL,
                                                .credentials_file = paths[0],
                                                .config_file = paths[1] };
    struct aws_config c = { .endpoint = "" };
    struct tp_err err = { 0 };
    tp_status st;

    for (int i = 0; i < 2; i++) {
        fuzz_write(names[i], i == 0 ? keys : "", i == 0 ? sizeof keys - 1 : 0);
        snprintf(paths[i], sizeof paths[i], "%s", fuzz_path(names[i]));
    }
    fuzz_write(names[first % 2], data, size);
    st = aws_config_find(&c, &env, &err);
    fuzz_check_error(st, &err);
    if (st)
        return 0;
    check_value(c.credentials.access_key, sizeof c.credentials.access_key);
    check_value(c.credentials.secret_key, sizeof c.credentials.secret_key);
    check_value(c.credentials.token, sizeof c.credentials.token);
    check_value(c.credentials.region, sizeof c.credentials.region);
    check_value(c.endpoint, sizeof c.endpoint);
    fuzz_must(c.credentials.access_key[0] && c.credentials.secret_key[0], "half of a pair");
    return 0;
}
