/* Products with MXFP4 weights that stay packed.

   A row of weights holds `cols` codes, two a byte, the even column in the low nibble, and a scale
   byte for each 32 columns (OCP Microscaling Formats 1.0). Products and sums are float32: the
   codes of a group times its inputs, that sum times the group's scale, added up in a fixed order.

   Inputs are laid out anew first (`split`), even columns apart from odd ones, so that a register of
   low nibbles meets the inputs it belongs to. For AVX2, where unpacking the weights to floats would be
   most of the work, the inputs are cut into three digits of a byte instead (`cut`), as fine as a
   float of their group's largest, and the sum of a group is exact in whole numbers. That grid is finer
   than the one of MXFP8 inputs, with which K3 was trained: 2^-23 of the largest against 2^-17.

   Compiled on first use by mxfp4_kernel.py; also by itself, with a sanitizer, in the tests. */

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#include <immintrin.h>
#define X86 1
#endif

enum { GROUP = 32, BATCH = 4, BLOCK = 16 };
enum { PORTABLE = 0, AVX2 = 1, AVX512 = 2 };

static const float VALUES[16] = {0.f,  .5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                 -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};

/* 2^(byte - 127); not a number for byte 255. */
static float POWER[256];

__attribute__((constructor)) static void fill_power(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t bits = byte == 255 ? 0x7FC00000u : byte ? byte << 23 : 1u << 22;
        memcpy(&POWER[byte], &bits, sizeof bits);
    }
}

/* Inputs of a row, in floats: whole pairs of groups. */
static inline size_t padded(size_t cols) { return (cols + 2 * GROUP - 1) / (2 * GROUP) * 2 * GROUP; }

/* Two groups of an input as AVX2 meets them, in the room of their floats. */
struct digits {
    int8_t digit[3][2 * GROUP]; /* of 2^16, 2^8 and 1; even columns of both groups, then odd ones */
    int32_t surplus[8];         /* 12 times the sum of eight columns */
    float unit[8];              /* half of what a 1 stands for: four times a group's, then the next's */
};

_Static_assert(sizeof(struct digits) == 2 * GROUP * sizeof(float), "digits take the floats' room");

/* One row of weights times n rows (1..BATCH) of split inputs, each `padded(cols)` long. */
typedef void dot_function(const uint8_t *w, const uint8_t *scale, const float *x, size_t cols,
                          int n, float *out);

static void dot_portable(const uint8_t *w, const uint8_t *scale, const float *x, size_t cols,
                         int n, float *out) {
    float total[BATCH] = {0};
    for (size_t g = 0; g < cols / GROUP; g++) {
        float even[GROUP / 2], odd[GROUP / 2];
        for (int j = 0; j < GROUP / 2; j++) {
            uint8_t byte = w[g * GROUP / 2 + j];
            even[j] = VALUES[byte & 15];
            odd[j] = VALUES[byte >> 4];
        }
        for (int i = 0; i < n; i++) {
            const float *in = x + i * padded(cols) + g * GROUP;
            float sum = 0;
            for (int j = 0; j < GROUP / 2; j++)
                sum += even[j] * in[j] + odd[j] * in[GROUP / 2 + j];
            total[i] += sum * POWER[scale[g]];
        }
    }
    for (int i = 0; i < n; i++) out[i] = total[i];
}

#ifdef X86
#define INLINE static inline __attribute__((always_inline))

/* Two groups at once, one in each half of a register. A shuffle looks up twice each value and 12
   more: 0 to 24, which the processor multiplies with signed bytes; that surplus is taken off. */
__attribute__((target("avx2,fma"))) INLINE void
dot_avx2_n(const uint8_t *w, const uint8_t *scale, const float *x, size_t cols, const int n,
           float *out) {
    const __m256i codes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i one = _mm256_set1_epi16(1), carry = _mm256_set1_epi16(256);
    const size_t groups = cols / GROUP, width = padded(cols);
    __m256 total[BATCH];
    for (int i = 0; i < n; i++) total[i] = _mm256_setzero_ps();
    for (size_t g = 0; g < groups; g += 2) {
        const int pair = g + 1 < groups;
        __m256i bytes = pair ? _mm256_loadu_si256((const __m256i *)(w + g * GROUP / 2))
                             : _mm256_zextsi128_si256(
                                   _mm_loadu_si128((const __m128i *)(w + g * GROUP / 2)));
        __m256 factor = _mm256_set_m128(pair ? _mm_broadcast_ss(&POWER[scale[g + 1]])
                                             : _mm_setzero_ps(),
                                        _mm_broadcast_ss(&POWER[scale[g]]));
        __m256i even = _mm256_shuffle_epi8(codes, _mm256_and_si256(bytes, nibble));
        __m256i odd = _mm256_shuffle_epi8(
            codes, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble));
        for (int i = 0; i < n; i++) {
            const struct digits *in = (const struct digits *)(x + i * width + g * GROUP);
            __m256i sum[3];
            for (int d = 0; d < 3; d++) {
                const __m256i *digit = (const __m256i *)in->digit[d];
                sum[d] = _mm256_add_epi16(_mm256_maddubs_epi16(even, _mm256_loadu_si256(digit)),
                                          _mm256_maddubs_epi16(odd, _mm256_loadu_si256(digit + 1)));
            }
            __m256i all = _mm256_add_epi32(_mm256_madd_epi16(sum[0], carry),
                                           _mm256_madd_epi16(sum[1], one));
            all = _mm256_add_epi32(_mm256_slli_epi32(all, 8), _mm256_madd_epi16(sum[2], one));
            all = _mm256_sub_epi32(all, _mm256_loadu_si256((const __m256i *)in->surplus));
            __m256 part = _mm256_mul_ps(_mm256_cvtepi32_ps(all), _mm256_loadu_ps(in->unit));
            total[i] = _mm256_fmadd_ps(part, factor, total[i]);
        }
    }
    for (int i = 0; i < n; i++) {
        __m128 sum = _mm_add_ps(_mm256_castps256_ps128(total[i]),
                                _mm256_extractf128_ps(total[i], 1));
        sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        out[i] = _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
    }
}

__attribute__((target("avx512f"))) INLINE void
dot_avx512_n(const uint8_t *w, const uint8_t *scale, const float *x, size_t cols, const int n,
             float *out) {
    const __m512 table = _mm512_loadu_ps(VALUES);
    __m512 total[BATCH];
    for (int i = 0; i < n; i++) total[i] = _mm512_setzero_ps();
    for (size_t g = 0; g < cols / GROUP; g++) {
        __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(w + g * GROUP / 2)));
        __m512 even = _mm512_permutexvar_ps(bytes, table); /* reads the low four bits */
        __m512 odd = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table);
        __m512 factor = _mm512_set1_ps(POWER[scale[g]]);
        for (int i = 0; i < n; i++) {
            const float *in = x + i * padded(cols) + g * GROUP;
            __m512 sum = _mm512_mul_ps(even, _mm512_loadu_ps(in));
            sum = _mm512_fmadd_ps(odd, _mm512_loadu_ps(in + 16), sum);
            total[i] = _mm512_fmadd_ps(sum, factor, total[i]);
        }
    }
    for (int i = 0; i < n; i++) out[i] = _mm512_reduce_add_ps(total[i]);
}

/* A constant n, so that the sums stay in registers. */
#define BY_COUNT(name, target_)                                                                 \
    __attribute__((target(target_))) static void name(const uint8_t *w, const uint8_t *scale,   \
                                                      const float *x, size_t cols, int n,       \
                                                      float *out) {                             \
        switch (n) {                                                                            \
        case 1: name##_n(w, scale, x, cols, 1, out); break;                                     \
        case 2: name##_n(w, scale, x, cols, 2, out); break;                                     \
        case 3: name##_n(w, scale, x, cols, 3, out); break;                                     \
        default: name##_n(w, scale, x, cols, 4, out);                                           \
        }                                                                                       \
    }
BY_COUNT(dot_avx2, "avx2,fma")
BY_COUNT(dot_avx512, "avx512f")
#endif

/* The best instructions of this processor: 0 portable, 1 AVX2, 2 AVX-512. */
int mxfp4_level(void) {
#ifdef X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return PORTABLE;
}

static dot_function *dot_of(int level) {
#ifdef X86
    if (level == AVX512) return dot_avx512;
    if (level == AVX2) return dot_avx2;
#endif
    (void)level;
    return dot_portable;
}

/* Inputs of each group: the 16 even columns, then the 16 odd ones. */
static void split(const float *x, float *out, size_t cols) {
    for (size_t c = 0; c < cols; c++)
        out[c / GROUP * GROUP + c % 2 * GROUP / 2 + c % GROUP / 2] = x[c];
}

/* An input in digits: each column is a whole number of units, 24 bits with its sign; the unit
   follows from the group's largest column. A group that holds no finite numbers counts as such. */
static void cut(const float *x, struct digits *out, size_t cols) {
    const float most = 127 * 65536.f, least = 0x1p-100f;
    memset(out, 0, padded(cols) * sizeof *x);
    for (size_t g = 0; g < cols / GROUP; g++, x += GROUP) {
        struct digits *to = out + g / 2;
        float largest = least;
        int finite = 1;
        for (int c = 0; c < GROUP; c++) {
            finite &= fabsf(x[c]) <= FLT_MAX;
            largest = fabsf(x[c]) > largest ? fabsf(x[c]) : largest;
        }
        float unit = finite ? largest / most / 2 : NAN, times = finite ? most / largest : 0;
        for (int l = 0; l < 4; l++) to->unit[g % 2 * 4 + l] = unit;
        if (!finite) continue;
        for (int c = 0; c < GROUP; c++) {
            float scaled = x[c] * times;
            int32_t n = (int32_t)(scaled + (scaled < 0 ? -.5f : .5f));
            to->surplus[g % 2 * 4 + c / 8] += 12 * n;
            int at = c % 2 * GROUP + (int)(g % 2) * GROUP / 2 + c / 2;
            for (int d = 2; d >= 0; d--) {
                int32_t rest = (n + 128) >> 8;
                to->digit[d][at] = (int8_t)(n - rest * 256);
                n = rest;
            }
        }
    }
}

/* y[p] = W[expert[p]] x[p] for each of n inputs; equal experts stand next to each other.

   packed [experts, rows, cols / 2], scale [experts, rows, cols / 32], expert [n], x [n, cols],
   y [n, rows]; all contiguous. Returns 0; 1 when there is no memory; 2 when there is no such expert. */
int mxfp4_matmul(const uint8_t *packed, const uint8_t *scale, const int64_t *expert,
                 const float *x, float *y, size_t n, size_t experts, size_t rows, size_t cols,
                 int threads, int level) {
    if (n == 0 || rows == 0) return 0;
    for (size_t p = 0; p < n; p++)
        if (expert[p] < 0 || (size_t)expert[p] >= experts) return 2;
    dot_function *dot = dot_of(level);
    size_t groups = cols / GROUP, blocks = (rows + BLOCK - 1) / BLOCK, runs = 0;
    size_t *start = malloc((n + 1) * sizeof *start);
    size_t width = padded(cols);
    float *inputs = calloc(n * width, sizeof *inputs);
    if (!start || !inputs) {
        free(start);
        free(inputs);
        return 1;
    }
    for (size_t p = 0; p < n; p++)
        if (p == 0 || expert[p] != expert[p - 1]) start[runs++] = p;
    start[runs] = n;
    for (size_t p = 0; p < n; p++) {
        if (level == AVX2)
            cut(x + p * cols, (struct digits *)(inputs + p * width), cols);
        else
            split(x + p * cols, inputs + p * width, cols);
    }

    ptrdiff_t units = (ptrdiff_t)(runs * blocks);
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
    for (ptrdiff_t unit = 0; unit < units; unit++) {
        size_t run = (size_t)unit / blocks, first = (size_t)unit % blocks * BLOCK;
        size_t last = first + BLOCK < rows ? first + BLOCK : rows;
        size_t base = (size_t)expert[start[run]] * rows;
        for (size_t p = start[run]; p < start[run + 1]; p += BATCH) {
            size_t left = start[run + 1] - p;
            int count = left < BATCH ? (int)left : BATCH;
            for (size_t r = first; r < last; r++) {
                float out[BATCH];
                dot(packed + (base + r) * cols / 2, scale + (base + r) * groups, inputs + p * width,
                    cols, count, out);
                for (int i = 0; i < count; i++) y[(p + i) * rows + r] = out[i];
            }
        }
    }
    free(start);
    free(inputs);
    return 0;
}

/* One row of weights, in order. */
static void unpack_portable(const uint8_t *w, const uint8_t *scale, float *out, size_t cols) {
    for (size_t g = 0; g < cols / GROUP; g++) {
        float factor = POWER[scale[g]];
        for (size_t j = g * GROUP / 2; j < (g + 1) * GROUP / 2; j++) {
            out[2 * j] = VALUES[w[j] & 15] * factor;
            out[2 * j + 1] = VALUES[w[j] >> 4] * factor;
        }
    }
}

#ifdef X86
__attribute__((target("avx2"))) static void unpack_avx2(const uint8_t *w, const uint8_t *scale,
                                                        float *out, size_t cols) {
    const __m256 table = _mm256_loadu_ps(VALUES), sign = _mm256_set1_ps(-0.f);
    const __m128i nibble = _mm_set1_epi8(15);
    for (size_t g = 0; g < cols / GROUP; g++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(w + g * GROUP / 2));
        __m128i even = _mm_and_si128(bytes, nibble);
        __m128i odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
        __m128i halves[2] = {_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd)};
        __m256 factor = _mm256_set1_ps(POWER[scale[g]]);
        for (int k = 0; k < 4; k++) {
            __m128i half = halves[k / 2];
            __m256i code = _mm256_cvtepu8_epi32(k % 2 ? _mm_srli_si128(half, 8) : half);
            __m256 size = _mm256_permutevar8x32_ps(table, code); /* reads the low three bits */
            __m256 minus = _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(code, 28)), sign);
            _mm256_storeu_ps(out + g * GROUP + k * 8,
                             _mm256_mul_ps(_mm256_xor_ps(size, minus), factor));
        }
    }
}
#endif

/* The weights themselves: packed [rows, cols / 2], scale [rows, cols / 32] -> out [rows, cols]. */
void mxfp4_unpack(const uint8_t *packed, const uint8_t *scale, float *out, size_t rows, size_t cols,
                  int threads, int level) {
    void (*unpack)(const uint8_t *, const uint8_t *, float *, size_t) = unpack_portable;
#ifdef X86
    if (level >= AVX2) unpack = unpack_avx2;
#endif
    (void)threads, (void)level;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
    for (ptrdiff_t r = 0; r < (ptrdiff_t)rows; r++)
        unpack(packed + (size_t)r * cols / 2, scale + (size_t)r * (cols / GROUP),
               out + (size_t)r * cols, cols);
}
