/* tests/unit/storage_s3_list.c - listings of a store: entries, pages, and texts that are none. */
#include "storage/s3_list.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Test(s3_list, entries_have_names_and_sizes)
{
    struct folder_entry *e = NULL;
    char token[S3_TOKEN_MAX];
    int n = 0;

    cr_assert(
        s3_list_parse(&e, &n, token,
                      "<?xml?><ListBucketResult xmlns=\"x\"><Contents><Key>a/b/f.h5</Key>"
                      "<ETag>x</ETag><Size>123</Size></Contents><Contents><Key>a/b/</Key>"
                      "<Size>0</Size></Contents><Contents><Key>a/b/x&amp;y</Key><Size>1</Size>"
                      "</Contents><CommonPrefixes><Prefix>a/b/step-1/</Prefix>"
                      "</CommonPrefixes><NextContinuationToken>1/a=</NextContinuationToken>"
                      "</ListBucketResult>"));
    cr_assert_eq(n, 2);
    cr_expect_str_eq(e[0].name, "f.h5");
    cr_expect_eq(e[0].size, 123);
    cr_expect_str_eq(e[1].name, "step-1");
    cr_expect(e[1].is_folder && e[1].size == -1);
    cr_expect_str_eq(token, "1/a=");
    free(e);
}

/* Ceph's token is the last key. */
Test(s3_list, the_token_is_text_of_xml)
{
    struct folder_entry *e = NULL;
    char token[S3_TOKEN_MAX];
    int n = 0;

    cr_assert(s3_list_parse(&e, &n, token,
                            "<ListBucketResult><NextContinuationToken>a&amp;b/&lt;&gt;&quot;&apos;"
                            "&#38;&#x2B;&#3;&#300;&amp&unknown;&#38</NextContinuationToken>"
                            "</ListBucketResult>"));
    cr_expect_str_eq(token, "a&b/<>\"'&+\3&#300;&amp&unknown;&#38");
}

Test(s3_list, many_pages_are_added_up)
{
    struct folder_entry *e = NULL;
    char token[S3_TOKEN_MAX] = "x", text[200];
    int n = 0;

    for (int i = 0; i < 1000; i++) {
        snprintf(text, sizeof text,
                 "<ListBucketResult><Contents><Key>k%d</Key><Size>%d</Size></Contents>"
                 "</ListBucketResult>",
                 i, i);
        cr_assert(s3_list_parse(&e, &n, token, text));
    }
    cr_assert_eq(n, 1000);
    cr_assert(s3_list_parse(&e, &n, token,
                            "<ListBucketResult><IsTruncated>false</IsTruncated>"
                            "</ListBucketResult>"));
    cr_expect_str_eq(e[777].name, "k777");
    cr_expect_eq(e[777].size, 777);
    cr_expect_str_eq(token, "");
    free(e);
}

Test(s3_list, other_texts_are_refused)
{
    static const char *const wrong[] = {
        "",
        "<html>",
        "<ListBucketResult><Contents><Key>k</Key></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>k</Key><Size>1</Size></Contents>",
        "<ListBucketResult><IsTruncated>true</IsTruncated><Marker/></ListBucketResult>",
    };
    struct folder_entry *e = NULL;
    char token[S3_TOKEN_MAX];
    int n = 0;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_expect_not(s3_list_parse(&e, &n, token, wrong[i]), "%s", wrong[i]);
    free(e);
}
