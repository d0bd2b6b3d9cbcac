/*
 * kernels/cpu/part_sums_body.h - the arithmetic of kernels/part_sums.h, compiled as C and as CUDA.
 *
 * CRC: values are reflected as in RFC 3720: bit 31 is the coefficient of x^0. A thread takes every
 * n_threads-th word of a piece and multiplies what it has by x^(32 n_threads) before it adds the
 * next one, by tables. At the end it multiplies by x^8 for each byte that follows its last word.
 * Digest: a lane takes every lanes-th element of a row, from the last one to the first, by Horner's
 * rule with the point to the power `lanes`.
 */
#ifndef KERNELS_CPU_PART_SUMS_BODY_H
#define KERNELS_CPU_PART_SUMS_BODY_H

#include "kernels/cpu/cast_body.h"
#include "kernels/part_sums.h"

#define PART_SUMS_POLYNOMIAL 0x82f63b78u /* Castagnoli, reflected */
#define PART_SUMS_PRIME      ((UINT64_C(1) << 61) - 1)

enum { PART_SUMS_PIECE = 64 << 10 }; /* bytes of a CRC that one block computes */

/* ---- CRC32C ---- */

/* a times b modulo the polynomial. */
COPY_FN uint32_t part_sums_multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (; a; a <<= 1) {
        product ^= b & (0u - (a >> 31));
        b = (b >> 1) ^ (PART_SUMS_POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

/* crc times x^(8 n_bytes): the register after so many zero bytes. */
COPY_FN uint32_t part_sums_shift(const uint32_t powers[PART_SUMS_CRC_POWERS], uint32_t crc,
                                 int64_t n_bytes)
{
    for (int k = 0; n_bytes > 0 && crc; n_bytes >>= 1, k++)
        if (n_bytes & 1)
            crc = part_sums_multiply(powers[k % PART_SUMS_CRC_POWERS], crc);
    return crc;
}

/* Entry `value` of all four tables: that value of a byte of a register, times x^(8 n_bytes). The
 * product with bit i is x times the product with bit i + 1. */
COPY_FN void part_sums_table_entry(uint32_t table[4][256], int value, uint32_t power)
{
    for (int byte = 3; byte >= 0; byte--) {
        uint32_t entry = 0;

        for (int bit = 7; bit >= 0; bit--) {
            entry ^= power & (0u - ((uint32_t)value >> bit & 1));
            power = (power >> 1) ^ (PART_SUMS_POLYNOMIAL & (0u - (power & 1)));
        }
        table[byte][value] = entry;
    }
}

/* The register times what the tables are made for. */
COPY_FN uint32_t part_sums_step(const uint32_t table[4][256], uint32_t s)
{
    return table[0][s & 255] ^ table[1][s >> 8 & 255] ^ table[2][s >> 16 & 255] ^ table[3][s >> 24];
}

/* What the words of thread number `thread`, and the bytes around them if it is thread 0, contribute
 * to the CRC of n bytes. The tables are for the bytes of n_threads words. Threads take words from
 * the end, so that few bytes follow a thread's last one. */
COPY_FN uint32_t part_sums_crc(const struct part_sums *a, const char *data, int64_t n, int thread,
                               int n_threads, const uint32_t table[4][256])
{
    int64_t head = (int64_t)((~(uintptr_t)data + 1) & 3), words, tail;
    const copy_4 *word;
    uint32_t s = 0, sum = 0;

    head = head < n ? head : n;
    words = (n - head) / 4;
    tail = head + 4 * words;
    word = (const copy_4 *)(data + head);
    if (thread < words)
        for (int64_t j = (words - 1 - thread) % n_threads; j < words; j += n_threads)
            s = part_sums_step(table, s) ^ word[j];
    sum = part_sums_shift(a->crc_powers, s, n - tail + 4 * (int64_t)(thread + 1));
    for (int64_t i = 0; thread == 0 && i < head; i++)
        sum ^= part_sums_shift(a->crc_powers, (uint8_t)data[i], n - i);
    for (int64_t i = tail; thread == 0 && i < n; i++)
        sum ^= part_sums_shift(a->crc_powers, (uint8_t)data[i], n - i);
    return sum;
}

/* ---- the digest ---- */

COPY_FN uint64_t part_sums_add(uint64_t a, uint64_t b)
{
    uint64_t s = a + b;

    return s >= PART_SUMS_PRIME ? s - PART_SUMS_PRIME : s;
}

/* The product of two numbers below the prime, for which 2^61 is 1. */
COPY_FN uint64_t part_sums_times(uint64_t a, uint64_t b)
{
    unsigned __int128 x = (unsigned __int128)a * b;
    uint64_t s = (uint64_t)(x & PART_SUMS_PRIME) + (uint64_t)(x >> 61);

    return s >= PART_SUMS_PRIME ? s - PART_SUMS_PRIME : s;
}

COPY_FN uint64_t part_sums_power(const uint64_t powers[PART_SUMS_POWERS], uint64_t exponent)
{
    uint64_t result = 1;

    for (int k = 0; exponent; k++, exponent >>= 1)
        if (exponent & 1)
            result = part_sums_times(result, powers[k]);
    return result;
}

/* Element i of a row, as an unsigned number. */
COPY_FN uint32_t part_sums_element(const struct part_sums_item *it, const char *row, int64_t i)
{
    uint64_t bits[1];

    if (it->type != it->cast) {
        int halves = it->cast == DTYPE_F64 ? 2 : 1;

        cast_element(bits, it->cast, 0, row, it->type, i / halves);
        return it->elem_bytes == 2 ? ((const copy_2 *)bits)[0] : ((const copy_4 *)bits)[i % halves];
    }
    return it->elem_bytes == 4   ? ((const copy_4 *)row)[i]
           : it->elem_bytes == 2 ? ((const copy_2 *)row)[i]
                                 : ((const copy_1 *)row)[i];
}

/* Add lane number `lane`'s elements of the row at a cursor to the digest's two sums. */
COPY_FN void part_sums_row(uint64_t sum[PART_SUMS_POINTS], const struct part_sums *a,
                           const struct part_sums_item *it, const struct copy_cursor *c, int lane,
                           int lanes)
{
    int64_t n = c->bytes / it->rows.src_elem * it->rows.dst_elem;
    uint64_t s[PART_SUMS_POINTS] = { 0, 0 }, step[PART_SUMS_POINTS];

    if (lane >= n)
        return;
    for (int p = 0; p < PART_SUMS_POINTS; p++)
        step[p] = part_sums_power(a->powers[p], (uint64_t)lanes);
    for (int64_t i = (n - 1 - lane) / lanes * lanes + lane; i >= 0; i -= lanes) {
        uint64_t v = (uint64_t)part_sums_element(it, it->data + c->src, i) + 1;

        for (int p = 0; p < PART_SUMS_POINTS; p++)
            s[p] = part_sums_add(part_sums_times(s[p], step[p]), v);
    }
    for (int p = 0; p < PART_SUMS_POINTS; p++) {
        uint64_t at = part_sums_power(a->powers[p], (uint64_t)(c->dst + lane));

        sum[p] = part_sums_add(sum[p], part_sums_times(s[p], at));
    }
}

/* The same for all rows of worker number `worker` of `workers`. */
COPY_FN void part_sums_rows(uint64_t sum[PART_SUMS_POINTS], const struct part_sums *a,
                            const struct part_sums_item *it, int64_t worker, int64_t workers,
                            int lane, int lanes)
{
    struct copy_cursor c;

    if (worker >= it->rows.n_rows)
        return;
    copy_cursor_begin(&c, &it->rows, worker, workers);
    for (; c.row < it->rows.n_rows; copy_cursor_next(&c, &it->rows))
        part_sums_row(sum, a, it, &c, lane, lanes);
}

#endif
