/* tests/unit/ckpt_sha256.c - SHA-256 against the examples of FIPS 180. */
#include "ckpt/sha256.h"

#include <criterion/criterion.h>
#include <string.h>

Test(sha256, matches_the_published_examples)
{
    static const struct {
        const char *text, *hash;
    } cases[] = {
        { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
    };
    char out[SHA256_TEXT];
    struct tp_err err = { 0 };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert_eq(sha256_of(out, cases[i].text, strlen(cases[i].text), &err), TP_OK);
        cr_expect_str_eq(out, cases[i].hash);
    }
}

Test(sha256, does_not_depend_on_how_data_is_added)
{
    char data[1000], whole[SHA256_TEXT], pieces[SHA256_TEXT];
    struct sha256 *h = NULL;
    struct tp_err err = { 0 };

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * i);
    cr_assert_eq(sha256_of(whole, data, sizeof data, &err), TP_OK);
    cr_assert_eq(sha256_new(&h, &err), TP_OK);
    for (size_t at = 0, n = 0; at < sizeof data; at += n++) /* 0, 1, 2, ... bytes at a time */
        sha256_add(h, data + at, at + n < sizeof data ? n : sizeof data - at);
    sha256_end(h, pieces);
    cr_expect_str_eq(pieces, whole);
}
