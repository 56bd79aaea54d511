/* One token through a whole K3 model: what k3.py says, in float32 and without its many calls.

   For models so small that calling costs more than computing. One thread; sums in a fixed order.
   Routed experts stay packed (mxfp4_kernel.c). The structures are filled by decode_kernel.py,
   field by field in this order. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#include <immintrin.h>
#define X86 1
#endif

int mxfp4_matmul(const uint8_t *packed, const uint8_t *scale, const int64_t *expert,
                 const float *x, float *y, size_t n, size_t experts, size_t rows, size_t cols,
                 int threads, int level);

struct shape {
    size_t layers, hidden, vocab;
    size_t kda_heads, kda_dim, kernel;                   /* KDA; the convolutions' taps */
    size_t heads, q_rank, latent, nope, shared, value;   /* MLA */
    size_t dense, experts, chosen, routed, width, wide;  /* GLUs: dense, routed, shared */
    float eps, latent_eps, lower_bound, beta, linear_beta, scaling;
    int level; /* instructions, as in mxfp4_kernel.c */
};

struct layer {
    size_t is_mla, is_dense, starts_block;
    const float *attn_key, *attn_norm, *mlp_key, *mlp_norm; /* keys and norms of both sublayers */
    /* KDA */
    const float *q, *k, *v, *q_conv, *k_conv, *v_conv;
    const float *f_a, *f_b, *dt_bias, *a_log, *b, *o_norm;
    /* MLA */
    const float *q_a, *q_a_norm, *q_b, *kv_a, *kv_a_norm, *kv_b;
    /* both */
    const float *g, *o;
    /* the dense GLU, or the shared experts */
    const float *gate, *up, *down;
    /* routed experts */
    const float *router, *router_bias, *to_latent, *latent_norm, *from_latent;
    const uint8_t *w1, *s1, *w2, *s2, *w3, *s3;
};

/* What a layer remembers of the sequence. */
struct memory {
    float *S;      /* KDA: [heads, V, K] */
    float *tail;   /* KDA: [kernel - 1, 3 heads K], the oldest first */
    float *rows;   /* MLA: [length + 1, latent + shared]; the last one is written here */
    size_t length; /* MLA: tokens before this one */
};

enum { SPAN = 64 }; /* cached tokens that stay in the nearest cache */

/* --- vectors ---------------------------------------------------------------------------------- */

static float dot(const float *a, const float *b, size_t n) {
    float lanes[8] = {0}, sum = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++) lanes[l] += a[i + l] * b[i + l];
    for (int l = 0; l < 8; l++) sum += lanes[l];
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void add_scaled(float *y, float factor, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += factor * x[i];
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

#ifdef X86
__attribute__((target("avx2,fma"))) static void rows_avx2(const float *w, size_t stride,
                                                          const float *x, float *y, size_t rows,
                                                          size_t cols) {
    for (size_t r = 0; r < rows; r++) {
        const float *row = w + r * stride;
        __m256 even = _mm256_setzero_ps(), odd = even;
        size_t i = 0;
        for (; i + 16 <= cols; i += 16) {
            even = _mm256_fmadd_ps(_mm256_loadu_ps(row + i), _mm256_loadu_ps(x + i), even);
            odd = _mm256_fmadd_ps(_mm256_loadu_ps(row + i + 8), _mm256_loadu_ps(x + i + 8), odd);
        }
        float lanes[8], sum = 0;
        _mm256_storeu_ps(lanes, _mm256_add_ps(even, odd));
        for (int l = 0; l < 8; l++) sum += lanes[l];
        for (; i < cols; i++) sum += row[i] * x[i];
        y[r] = sum;
    }
}
#endif

/* y[r] = w[r] . x for rows that lie `stride` apart. */
static void product(const struct shape *s, const float *w, size_t stride, const float *x, float *y,
                    size_t rows, size_t cols) {
#ifdef X86
    if (s->level >= 1) {
        rows_avx2(w, stride, x, y, rows, cols);
        return;
    }
#endif
    (void)s;
    for (size_t r = 0; r < rows; r++) y[r] = dot(w + r * stride, x, cols);
}

#ifdef X86
__attribute__((target("avx2,fma"))) static void add_rows_avx2(const float *w, size_t stride,
                                                              const float *factor, float *y,
                                                              size_t rows, size_t cols) {
    size_t i = 0;
    for (; i + 32 <= cols; i += 32) {
        __m256 a = _mm256_loadu_ps(y + i), b = _mm256_loadu_ps(y + i + 8);
        __m256 c = _mm256_loadu_ps(y + i + 16), d = _mm256_loadu_ps(y + i + 24);
        for (size_t r = 0; r < rows; r++) {
            const float *row = w + r * stride + i;
            __m256 times = _mm256_broadcast_ss(factor + r);
            a = _mm256_fmadd_ps(times, _mm256_loadu_ps(row), a);
            b = _mm256_fmadd_ps(times, _mm256_loadu_ps(row + 8), b);
            c = _mm256_fmadd_ps(times, _mm256_loadu_ps(row + 16), c);
            d = _mm256_fmadd_ps(times, _mm256_loadu_ps(row + 24), d);
        }
        _mm256_storeu_ps(y + i, a), _mm256_storeu_ps(y + i + 8, b);
        _mm256_storeu_ps(y + i + 16, c), _mm256_storeu_ps(y + i + 24, d);
    }
    for (; i < cols; i++)
        for (size_t r = 0; r < rows; r++) y[i] += factor[r] * w[r * stride + i];
}
#endif

/* y += factor[r] w[r] over rows that lie `stride` apart. */
static void add_rows(const struct shape *s, const float *w, size_t stride, const float *factor,
                     float *y, size_t rows, size_t cols) {
#ifdef X86
    if (s->level >= 1) {
        add_rows_avx2(w, stride, factor, y, rows, cols);
        return;
    }
#endif
    (void)s;
    for (size_t r = 0; r < rows; r++) add_scaled(y, factor[r], w + r * stride, cols);
}

static void linear(const struct shape *s, const float *w, const float *x, float *y, size_t rows,
                   size_t cols) {
    product(s, w, cols, x, y, rows, cols);
}

static void rms_norm(const float *x, const float *gain, float *y, size_t n, float eps) {
    float factor = 1 / sqrtf(dot(x, x, n) / n + eps);
    for (size_t i = 0; i < n; i++) y[i] = x[i] * factor * gain[i];
}

static void softmax(float *x, size_t n) {
    float most = x[0], sum = 0;
    for (size_t i = 1; i < n; i++) most = fmaxf(most, x[i]);
    for (size_t i = 0; i < n; i++) sum += x[i] = expf(x[i] - most);
    for (size_t i = 0; i < n; i++) x[i] /= sum;
}

/* gate <- SiTU-GLU of gate and up (equation 12); linear_beta 0 leaves `up` as it is. */
static void situ(const struct shape *s, float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float u = s->linear_beta ? s->linear_beta * tanhf(up[i] / s->linear_beta) : up[i];
        gate[i] = s->beta * tanhf(gate[i] / s->beta) * sigmoid(gate[i]) * u;
    }
}

/* --- the parts -------------------------------------------------------------------------------- */

/* Attention Residuals: the softmax mixture of n sources [n, hidden] (equation 10). */
static void mix(const struct shape *s, const float *sources, size_t n, const float *key, float *h) {
    size_t d = s->hidden;
    float weight[n];
    for (size_t i = 0; i < n; i++) {
        const float *v = sources + i * d;
        weight[i] = dot(v, key, d) / sqrtf(dot(v, v, d) / d + s->eps);
    }
    softmax(weight, n);
    memset(h, 0, d * sizeof *h);
    for (size_t i = 0; i < n; i++) add_scaled(h, weight[i], sources + i * d, d);
}

/* Kimi Delta Attention. work: 7 heads K + K + heads. */
static void kda(const struct shape *s, const struct layer *w, const struct memory *m,
                const float *x, float *out, float *work) {
    size_t H = s->kda_heads, K = s->kda_dim, C = H * K, taps = s->kernel;
    float *y = work, *qkv = y + 3 * C, *low = qkv + 3 * C, *beta = low + K, *alpha = beta + H;
    linear(s, w->q, x, y, C, s->hidden);
    linear(s, w->k, x, y + C, C, s->hidden);
    linear(s, w->v, x, y + 2 * C, C, s->hidden);
    const float *convolutions[3] = {w->q_conv, w->k_conv, w->v_conv};
    for (size_t c = 0; c < 3 * C; c++) {
        const float *tap = convolutions[c / C] + c % C * taps;
        float sum = 0;
        for (size_t j = 0; j + 1 < taps; j++) sum += m->tail[j * 3 * C + c] * tap[j];
        sum += y[c] * tap[taps - 1];
        qkv[c] = sum * sigmoid(sum);
    }
    memmove(m->tail, m->tail + 3 * C, (taps - 2) * 3 * C * sizeof *y);
    memcpy(m->tail + (taps - 2) * 3 * C, y, 3 * C * sizeof *y);

    linear(s, w->f_a, x, low, K, s->hidden);
    linear(s, w->f_b, low, alpha, C, K);
    linear(s, w->b, x, beta, H, s->hidden);
    float *gate = y, *o = y + C; /* the projections are used up */
    linear(s, w->g, x, gate, C, s->hidden);
    for (size_t h = 0; h < H; h++) {
        float *q = qkv + h * K, *k = q + C, *v = q + 2 * C, *a = alpha + h * K;
        float slope = expf(w->a_log[h]), write = sigmoid(beta[h]);
        float q_size = 1 / sqrtf(dot(q, q, K) + 1e-6f) / sqrtf(K);
        float k_size = 1 / sqrtf(dot(k, k, K) + 1e-6f);
        for (size_t i = 0; i < K; i++) {
            q[i] *= q_size;
            k[i] *= k_size;
            a[i] = expf(s->lower_bound * sigmoid(slope * (a[i] + w->dt_bias[h * K + i])));
        }
        for (size_t j = 0; j < K; j++) { /* one column of S, which lies here as a row */
            float *row = m->S + (h * K + j) * K;
            for (size_t i = 0; i < K; i++) row[i] *= a[i];
            add_scaled(row, write * (v[j] - dot(row, k, K)), k, K);
            o[h * K + j] = dot(row, q, K);
        }
        rms_norm(o + h * K, w->o_norm, o + h * K, K, s->eps);
    }
    for (size_t c = 0; c < C; c++) o[c] *= sigmoid(gate[c]);
    linear(s, w->o, o, out, s->hidden, C);
}

/* Gated MLA, absorbed; all heads meet a span of cached tokens before the next is read.
   work: q_rank + heads (nope + 2 shared + 2 value + 2 latent + length + 1). */
static void mla(const struct shape *s, const struct layer *w, const struct memory *m,
                const float *x, float *out, float *work) {
    size_t H = s->heads, D = s->nope + s->shared, row = s->latent + s->shared, n = m->length + 1;
    float *low = work, *q = low + s->q_rank, *o = q + H * D, *gate = o + H * s->value;
    float *query = gate + H * s->value, *mixed = query + H * row, *weight = mixed + H * s->latent;
    linear(s, w->q_a, x, low, s->q_rank, s->hidden);
    rms_norm(low, w->q_a_norm, low, s->q_rank, s->latent_eps);
    linear(s, w->q_b, low, q, H * D, s->q_rank);
    float *own = m->rows + m->length * row;
    linear(s, w->kv_a, x, own, row, s->hidden);
    rms_norm(own, w->kv_a_norm, own, s->latent, s->latent_eps);
    linear(s, w->g, x, gate, H * s->value, s->hidden);
    memset(query, 0, H * (row + s->latent) * sizeof *query);
    size_t expanded = (s->nope + s->value) * s->latent; /* of one head: its keys, then its values */
    for (size_t h = 0; h < H; h++) {
        add_rows(s, w->kv_b + h * expanded, s->latent, q + h * D, query + h * row, s->nope,
                 s->latent);
        memcpy(query + h * row + s->latent, q + h * D + s->nope, s->shared * sizeof *query);
    }
    for (size_t t = 0; t < n; t += SPAN)
        for (size_t h = 0; h < H; h++)
            product(s, m->rows + t * row, row, query + h * row, weight + h * n + t,
                    n - t < SPAN ? n - t : SPAN, row);
    for (size_t i = 0; i < H * n; i++) weight[i] /= sqrtf(D);
    for (size_t h = 0; h < H; h++) softmax(weight + h * n, n);
    for (size_t t = 0; t < n; t += SPAN)
        for (size_t h = 0; h < H; h++)
            add_rows(s, m->rows + t * row, row, weight + h * n + t, mixed + h * s->latent,
                     n - t < SPAN ? n - t : SPAN, s->latent);
    for (size_t h = 0; h < H; h++)
        linear(s, w->kv_b + h * expanded + s->nope * s->latent, mixed + h * s->latent,
               o + h * s->value, s->value, s->latent);
    for (size_t i = 0; i < H * s->value; i++) o[i] *= sigmoid(gate[i]);
    linear(s, w->o, o, out, s->hidden, H * s->value);
}

/* A dense GLU. work: 2 width. */
static void glu(const struct shape *s, const struct layer *w, size_t width, const float *x,
                float *out, float *work) {
    linear(s, w->gate, x, work, width, s->hidden);
    linear(s, w->up, x, work + width, width, s->hidden);
    situ(s, work, work + width, width);
    linear(s, w->down, work, out, s->hidden, width);
}

/* Stable LatentMoE (equations 11 to 13). work: experts + chosen + 2 chosen (routed + width) +
   hidden + 2 wide. Returns what mxfp4_matmul does. */
static int moe(const struct shape *s, const struct layer *w, const float *x, float *out,
               float *work) {
    size_t k = s->chosen, L = s->routed, W = s->width;
    int64_t expert[k];
    float *score = work, *weight = score + s->experts, *z = weight + k, *y = z + k * L;
    float *gate = y + k * L, *up = gate + k * W, *shared = up + k * W, *rest = shared + s->hidden;
    linear(s, w->router, x, score, s->experts, s->hidden);
    for (size_t e = 0; e < s->experts; e++) score[e] = sigmoid(score[e]);
    float sum = 1e-20f;
    for (size_t i = 0; i < k; i++) {
        float best = -INFINITY;
        for (size_t e = 0; e < s->experts; e++) {
            int taken = 0;
            for (size_t j = 0; j < i; j++) taken |= expert[j] == (int64_t)e;
            if (taken || score[e] + w->router_bias[e] <= best) continue;
            best = score[e] + w->router_bias[e];
            expert[i] = (int64_t)e;
        }
        if (best == -INFINITY) return 2; /* scores that are no numbers choose nothing */
        sum += weight[i] = score[expert[i]];
    }
    linear(s, w->to_latent, x, z, L, s->hidden);
    for (size_t i = 1; i < k; i++) memcpy(z + i * L, z, L * sizeof *z);
    int failed = mxfp4_matmul(w->w1, w->s1, expert, z, gate, k, s->experts, W, L, 1, s->level) ||
                 mxfp4_matmul(w->w3, w->s3, expert, z, up, k, s->experts, W, L, 1, s->level);
    if (failed) return failed;
    situ(s, gate, up, k * W);
    failed = mxfp4_matmul(w->w2, w->s2, expert, gate, y, k, s->experts, L, W, 1, s->level);
    if (failed) return failed;
    memset(z, 0, L * sizeof *z);
    for (size_t i = 0; i < k; i++) add_scaled(z, weight[i] / sum * s->scaling, y + i * L, L);
    rms_norm(z, w->latent_norm, z, L, s->eps);
    linear(s, w->from_latent, z, out, s->hidden, L);
    glu(s, w, s->wide, x, shared, rest);
    add_scaled(out, 1, shared, s->hidden);
    return 0;
}

/* --- the model -------------------------------------------------------------------------------- */

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

/* Floats that the parts need beside their inputs and outputs. */
static size_t work_of(const struct shape *s, const struct memory *m) {
    size_t C = s->kda_heads * s->kda_dim, length = 0, k = s->chosen;
    for (size_t i = 0; i < s->layers; i++) length = most(length, m[i].length);
    size_t kda = 7 * C + s->kda_dim + s->kda_heads;
    size_t mla = s->q_rank + s->heads * (s->nope + 2 * s->shared + 2 * s->value + 2 * s->latent +
                                         length + 1);
    size_t moe = s->experts + k + 2 * k * (s->routed + s->width) + s->hidden + 2 * s->wide;
    return most(most(kda, mla), most(moe, 2 * s->dense));
}

/* Read one token, given by its embedding [hidden], into the memories; logits [vocab].

   keys: of the last read of the depth mixture. Returns 0; 1 when there is no memory. */
int k3_decode(const struct shape *s, const struct layer *layers, const struct memory *memories,
              const float *embedding, const float *last_key, const float *last_norm,
              const float *head, float *logits) {
    size_t d = s->hidden, sources = 1;
    float *bank = malloc(((s->layers + 4) * d + work_of(s, memories)) * sizeof *bank);
    if (!bank) return 1;
    float *h = bank + (s->layers + 1) * d, *x = h + d, *out = x + d, *work = out + d;
    memcpy(bank, embedding, d * sizeof *bank);
    int failed = 0;
    for (size_t i = 0; i < s->layers && !failed; i++) {
        const struct layer *w = &layers[i];
        mix(s, bank, sources, w->attn_key, h);
        rms_norm(h, w->attn_norm, x, d, s->eps);
        (w->is_mla ? mla : kda)(s, w, &memories[i], x, out, work);
        /* The running sum is the last source; the first layer of a block begins a new one. */
        if (w->starts_block) memset(bank + sources++ * d, 0, d * sizeof *bank);
        float *running = bank + (sources - 1) * d;
        add_scaled(running, 1, out, d);
        mix(s, bank, sources, w->mlp_key, h);
        rms_norm(h, w->mlp_norm, x, d, s->eps);
        if (w->is_dense)
            glu(s, w, s->dense, x, out, work);
        else
            failed = moe(s, w, x, out, work);
        add_scaled(running, 1, out, d);
    }
    mix(s, bank, sources, last_key, h);
    rms_norm(h, last_norm, x, d, s->eps);
    if (!failed) linear(s, head, x, logits, s->vocab, d);
    free(bank);
    return failed;
}
