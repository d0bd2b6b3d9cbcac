/* tests/unit/ckpt_digest.c - a digest depends on every bit of a tensor, but not on how it is cut.
 * covers: ckpt/digest_block ckpt/digest_mod ckpt/digest_rows */
#include <criterion/criterion.h>
#include <string.h>

#include "ckpt/digest.h"
#include "tests/unit/random.h"

#define PRIME ((UINT64_C(1) << 61) - 1)

enum { ELEMENTS_MAX = 9000 };

/* The definition in ckpt/digest.h, computed for one element at a time. */
static struct digest slow_digest(const unsigned char *data, int64_t n, int elem)
{
    const uint64_t point[2] = { 0x0d413cccfe779921, 0x176cf5d0b09954e7 };
    uint64_t power[2] = { 1, 1 };
    struct digest d = { { 0, 0 } };
    int width = elem == 8 ? 4 : elem;

    for (int64_t i = 0; i < n * elem / width; i++) {
        uint64_t v = 0;

        memcpy(&v, data + i * width, (size_t)width);
        for (int p = 0; p < 2; p++) {
            d.d[p] = (uint64_t)((d.d[p] + (unsigned __int128)(v + 1) * power[p]) % PRIME);
            power[p] = (uint64_t)((unsigned __int128)power[p] * point[p] % PRIME);
        }
    }
    return d;
}

/* A random tensor, and the variant that sums it. */
struct example {
    const unsigned char *data;
    int ndim, elem; /* bytes of an element */
    enum digest_variant variant;
    int64_t shape[BOX_NDIM_MAX];
};

/* The contribution of box b to the digest of the tensor. */
static struct digest digest_of_box(const struct example *x, const struct box *b)
{
    static unsigned char part[ELEMENTS_MAX * 8];
    const struct box whole = box_whole(x->ndim, x->shape);
    const size_t elem = (size_t)x->elem;
    int64_t n = box_elements(b);

    for (int64_t i = 0; i < n; i++) {
        struct box one;

        box_run(&one, b, 1, i);
        memcpy(part + (size_t)i * elem, x->data + (size_t)box_offset_in(&whole, &one) * elem, elem);
    }
    return digest_box_by(x->variant, part, b, x->ndim, x->shape, x->elem);
}

/* Cut b at random along random axes and add the digests of the pieces to *sum. */
static void add_tiles(struct digest *sum, const struct example *x, const struct box *b, int depth,
                      struct rng *r)
{
    int axis = x->ndim ? (int)rng_int(r, 0, x->ndim - 1) : 0;
    struct box left = *b, right = *b;

    if (depth == 0 || x->ndim == 0 || b->len[axis] < 2) {
        struct digest part = digest_of_box(x, b);

        digest_add(sum, &part);
        return;
    }
    left.len[axis] = rng_int(r, 1, b->len[axis] - 1);
    right.lo[axis] += left.len[axis];
    right.len[axis] -= left.len[axis];
    add_tiles(sum, x, &right, depth - 1, r);
    add_tiles(sum, x, &left, depth - 1, r);
}

/* A random shape of at most ELEMENTS_MAX elements. */
static int64_t random_shape(struct rng *r, int *ndim, int64_t *shape)
{
    int64_t n = 1, room = ELEMENTS_MAX;

    *ndim = (int)rng_int(r, 0, 4);
    for (int d = 0; d < *ndim; d++) {
        shape[d] = rng_int(r, 1, d == *ndim - 1 ? room : room < 40 ? room : 40);
        n *= shape[d];
        room /= shape[d];
    }
    return n;
}

Test(digest, every_tiling_gives_the_digest_of_the_definition)
{
    static unsigned char data[ELEMENTS_MAX * 8];
    struct rng r = rng_start("digest/tiling");

    for (int round = 0; round < 300; round++) {
        struct example x = { .data = data, .elem = 1 << rng_int(&r, 0, 3) };
        struct digest expected, sum = { { 0, 0 } };
        int64_t n = random_shape(&r, &x.ndim, x.shape);
        struct box whole;

        for (int64_t i = 0; i < n * x.elem; i++)
            data[i] =
                (unsigned char)(round / 3 % 3 ? rng_next(&r) : 0xff); /* the largest values too */
        whole = box_whole(x.ndim, x.shape);
        x.variant = (enum digest_variant)(round % DIGEST_VARIANTS);
        if (!digest_variant_runs(x.variant))
            x.variant = digest_variant_best();
        expected = slow_digest(data, n, x.elem);
        add_tiles(&sum, &x, &whole, 4, &r);
        cr_assert_eq(memcmp(&sum, &expected, sizeof sum), 0, "round %d: %d axes, %d bytes", round,
                     x.ndim, x.elem);
    }
}

/* Random data, and data where every product is as large as it can be; runs of every length. */
Test(digest, every_variant_that_this_processor_has_gives_the_same_sums)
{
    static unsigned char data[4 * DIGEST_BLOCK];
    struct rng r = rng_start("digest/variants");
    int variants = 0;

    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof data; i++)
            data[i] = (unsigned char)(round ? rng_next(&r) : 0xff);
        for (int n = 0; n <= DIGEST_BLOCK; n++)
            for (int elem = 1; elem <= 4; elem *= 2) {
                uint64_t expected[DIGEST_POINTS], found[DIGEST_POINTS];

                digest_block_sum(expected, data, elem, n, DIGEST_PLAIN);
                for (int v = DIGEST_PLAIN + 1; v < DIGEST_VARIANTS; v++) {
                    if (!digest_variant_runs((enum digest_variant)v))
                        continue;
                    digest_block_sum(found, data, elem, n, (enum digest_variant)v);
                    cr_assert_arr_eq(found, expected, sizeof found,
                                     "variant %d: %d elements of %d bytes", v, n, elem);
                }
            }
    }
    for (int v = DIGEST_PLAIN; v < DIGEST_VARIANTS; v++)
        variants += digest_variant_runs((enum digest_variant)v);
    cr_log_info("%d of %d variants run on this processor", variants, DIGEST_VARIANTS);
    cr_assert(digest_variant_runs(digest_variant_best()));
}

Test(digest, every_flipped_bit_and_every_swap_changes_it)
{
    unsigned char data[64];
    const int64_t shape[] = { 4, 4 };
    const struct box whole = box_whole(2, shape);
    struct rng r = rng_start("digest/flips");
    struct digest before, after;

    for (int i = 0; i < 64; i++)
        data[i] = (unsigned char)rng_next(&r);
    before = digest_box(data, &whole, 2, shape, 4);
    for (int bit = 0; bit < 64 * 8; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        after = digest_box(data, &whole, 2, shape, 4);
        cr_assert(after.d[0] != before.d[0] && after.d[1] != before.d[1]);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    for (int i = 1; i < 16; i++) {
        unsigned char swapped[64];

        memcpy(swapped, data, 64);
        memcpy(swapped, data + 4 * i, 4);
        memcpy(swapped + 4 * i, data, 4);
        after = digest_box(swapped, &whole, 2, shape, 4);
        cr_assert(after.d[0] != before.d[0] && after.d[1] != before.d[1]);
    }
}

Test(digest, zeros_of_another_length_have_another_digest)
{
    const unsigned char zeros[256] = { 0 };
    const int64_t a[] = { 32 }, b[] = { 33 };
    const struct box box_a = box_whole(1, a), box_b = box_whole(1, b);
    struct digest da = digest_box(zeros, &box_a, 1, a, 4), db = digest_box(zeros, &box_b, 1, b, 4);

    cr_expect(da.d[0] != db.d[0] && da.d[1] != db.d[1]);
}
