/* Products with MXFP4 weights that stay packed.

   A row of weights holds `cols` codes, two a byte, the even column in the low nibble, and a scale
   byte for each 32 columns (OCP Microscaling Formats 1.0). Products and sums are float32: the
   codes of a group times its inputs, that sum times the group's scale, added up in a fixed order.

   Inputs are laid out anew first (`split`), even columns apart from odd ones, so that a register of
   low nibbles meets the inputs it belongs to.

   Compiled on first use by mxfp4_kernel.py; also by itself, with a sanitizer, in the tests. */

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

/* Two groups at once, one in each half of a register. Of a value's float only the upper two bytes
   are not zero: a shuffle looks up each for 32 codes, and interleaving puts them in place. */
__attribute__((target("avx2,fma"))) INLINE void
dot_avx2_n(const uint8_t *w, const uint8_t *scale, const float *x, size_t cols, const int n,
           float *out) {
    const __m256i upper = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, (char)0x80, (char)0xBF,
                      (char)0xBF, (char)0xBF, (char)0xC0, (char)0xC0, (char)0xC0, (char)0xC0));
    const __m256i lower = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0x00, 0x00, (char)0x80, (char)0xC0, 0x00, 0x40, (char)0x80, (char)0xC0, 0x00,
                      0x00, (char)0x80, (char)0xC0, 0x00, 0x40, (char)0x80, (char)0xC0));
    const __m256i nibble = _mm256_set1_epi8(15), high_half = _mm256_set1_epi32(-65536);
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
        __m256 sum[BATCH];
        for (int odd = 0; odd < 2; odd++) {
            __m256i code = _mm256_and_si256(odd ? _mm256_srli_epi16(bytes, 4) : bytes, nibble);
            __m256i high = _mm256_shuffle_epi8(upper, code);
            __m256i low = _mm256_shuffle_epi8(lower, code);
            __m256i first = _mm256_unpacklo_epi8(low, high);
            __m256i last = _mm256_unpackhi_epi8(low, high);
            __m256 v0 = _mm256_castsi256_ps(_mm256_slli_epi32(first, 16));
            __m256 v1 = _mm256_castsi256_ps(_mm256_and_si256(first, high_half));
            __m256 v2 = _mm256_castsi256_ps(_mm256_slli_epi32(last, 16));
            __m256 v3 = _mm256_castsi256_ps(_mm256_and_si256(last, high_half));
            for (int i = 0; i < n; i++) {
                const float *in = x + i * width + g * GROUP + odd * GROUP;
                __m256 part = _mm256_mul_ps(v0, _mm256_loadu_ps(in));
                part = _mm256_fmadd_ps(v1, _mm256_loadu_ps(in + 8), part);
                part = _mm256_fmadd_ps(v2, _mm256_loadu_ps(in + 16), part);
                part = _mm256_fmadd_ps(v3, _mm256_loadu_ps(in + 24), part);
                sum[i] = odd ? _mm256_add_ps(sum[i], part) : part;
            }
        }
        for (int i = 0; i < n; i++) total[i] = _mm256_fmadd_ps(sum[i], factor, total[i]);
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

/* Inputs in the order in which `level` meets them: of each group the 16 even columns, then the 16
   odd ones; for AVX2 a pair of groups, the even columns of both before the odd ones, and of those
   each second one of eight of the first group, then of the second. */
static void split(const float *x, float *out, size_t cols, int level) {
    for (size_t c = 0; c < cols; c++) {
        size_t group = c / GROUP, odd = c % 2, j = c % GROUP / 2;
        size_t to = group * GROUP + odd * GROUP / 2 + j;
        if (level == AVX2)
            to = group / 2 * 2 * GROUP + odd * GROUP + (j / 8 * 2 + j % 2) * 8 + group % 2 * 4 +
                 j % 8 / 2;
        out[to] = x[c];
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
    for (size_t p = 0; p < n; p++) split(x + p * cols, inputs + p * width, cols, level);

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
