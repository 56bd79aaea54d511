/* Runs the kernel over many shapes in memory of exactly the right size, for a sanitizer to watch.
   Prints the number of products. */

#include KERNEL

#include <stdio.h>

static uint32_t seed = 1;
static uint32_t next_random(void) { return seed = seed * 1664525u + 1013904223u; }

static void *filled(size_t bytes, int scales) {
    uint8_t *data = malloc(bytes ? bytes : 1);
    for (size_t i = 0; i < bytes; i++) {
        uint8_t value = (uint8_t)(next_random() >> 24);
        data[i] = scales ? 120 + value % 16 : value;
    }
    return data;
}

int main(void) {
    int products = 0;
    for (size_t experts = 1; experts <= 3; experts++)
        for (size_t rows = 1; rows <= 35; rows += 17)
            for (size_t cols = GROUP; cols <= 4 * GROUP; cols += GROUP)
                for (size_t n = 0; n <= 9; n++)
                    for (int level = 0; level <= mxfp4_level(); level++) {
                        uint8_t *packed = filled(experts * rows * cols / 2, 0);
                        uint8_t *scale = filled(experts * rows * (cols / GROUP), 1);
                        int64_t *expert = malloc(n * sizeof *expert + 1);
                        float *x = malloc(n * cols * sizeof *x + 1);
                        float *y = malloc(n * rows * sizeof *y + 1);
                        float *out = malloc(rows * cols * sizeof *out);
                        for (size_t p = 0; p < n; p++) expert[p] = (int64_t)(p * experts / n);
                        for (size_t k = 0; k < n * cols; k++) x[k] = (float)(k % 7) - 3;
                        if (mxfp4_matmul(packed, scale, expert, x, y, n, experts, rows, cols, 2,
                                         level))
                            return 1;
                        mxfp4_unpack(packed, scale, out, rows, cols, 2, level);
                        for (size_t p = 0; p < n * rows; p++)
                            if (y[p] != y[p]) return 2;
                        products += (int)(n * rows);
                        free(packed), free(scale), free(expert), free(x), free(y), free(out);
                    }
    printf("%d\n", products);
    return 0;
}
