/* tests/fuzz/s3_list.c - a page of a listing of an S3 bucket, which comes from the network. The
 * names that are accepted must not lead to another folder. */
#include "storage/s3_list.h"
#include "core/file.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct folder_entry *entries = NULL;
    char token[S3_TOKEN_MAX],
        *text = malloc(size + 1); /* a block of its own, so that a byte too far is seen */
    int n = 0;

    fuzz_must(text != NULL, "no memory");
    memcpy(text, data, size);
    text[size] = 0;
    if (s3_list_parse(&entries, &n, token, text))
        fuzz_must(strlen(token) < S3_TOKEN_MAX, "a token that is too long");
    for (int i = 0; i < n; i++)
        fuzz_must(file_name_is_plain(entries[i].name) && entries[i].size >= -1,
                  "a name that is not plain, or a size below zero");
    free(entries);
    free(text);
    return 0;
}
