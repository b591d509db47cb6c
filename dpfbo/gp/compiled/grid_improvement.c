/* The grid row of largest expected improvement under averaged Gaussian processes (`averaged_gp`), agent by agent.

   A model is a kernel with noise, j, and a factor r of the known mean g. Kernels c < L are tables; kernel L + c is
   `own table_c + common`. In the whitened space of kernel j (`white x = L_j^-1 x`), with p = |white 1|^2:

       residual = white z - r white g - c white 1,    c = (white 1)' (white z - r white g) / p
       score = -(t / 2) log s^2 - sum log diag L_j - (1/2) log p + prior,    s^2 = (|residual|^2 + 1) / t */

#include <string.h>

#include "factor.h"

enum { H_POINTS = 4096, H_REACH = 8 }; /* table of phi(u) + u Phi(u) for u in [-H_REACH, H_REACH] */

typedef struct {
    long n, t, G; /* agents, observations of each, points of the grid */
    long L, V, R; /* length-scales, noises, factors */
    long kernels; /* L, or 2 L with a common covariance */
    long kept;    /* most probable models */
    long coarse, width, clusters; /* screening: rows, members of each, clusters that are searched */
    double own;
} Sizes;

typedef struct {
    const double *plain, *common; /* L x G x G, and G x G or NULL */
    const double *noises, *mean, *factors, *prior; /* V, G, R, and J x R with J = kernels V */
    const int *index;             /* n x t */
    const double *z;              /* n x t */
    const int *coarse, *members;  /* coarse, and coarse x width */
    const double *h;              /* H_POINTS + 1 */
} Given;

typedef struct {
    double *L;                      /* J x t x padded t */
    double *z, *g, *one;            /* J x padded t, whitened */
    double *p, *logdet;             /* J */
    double *score, *constant, *s2;  /* J x R */
    double *residual, *weight;      /* kept x padded t, and kept */
    double *V, *values, *top;       /* t x DOUBLES; points; clusters */
    long *model, *best;             /* kept, and clusters */
    int *points;
    char *known;                    /* G */
} Arrays;

INLINE double kernel(const Sizes *s, const Given *given, long c, long a, long b)
{
    const long at = a * s->G + b;
    if (c < s->L)
        return given->plain[c * s->G * s->G + at];
    return s->own * given->plain[(c - s->L) * s->G * s->G + at] + given->common[at];
}

/* Factor and score all models of the agent with rows `at` and values z; returns 0 if a matrix has no factor. */
static int fit(const Sizes *s, const Given *given, const Arrays *arrays, const int *at, const double *z)
{
    const long t = s->t, tp = up_to(t, DOUBLES), R = s->R;
    for (long j = 0; j < s->kernels * s->V; j++) {
        double *L = arrays->L + j * t * tp, *wz = arrays->z + j * tp, *wg = arrays->g + j * tp;
        double *one = arrays->one + j * tp, logs = 0.0;
        for (long k = 0; k < t; k++) {
            double *column = L + k * tp;
            for (long i = 0; i < tp; i++)
                column[i] = i < t && i >= k / DOUBLES * DOUBLES ? kernel(s, given, j / s->V, at[k], at[i]) : 0.0;
            column[k] += given->noises[j % s->V];
        }
        if (!factorise(L, t))
            return 0;
        for (long i = 0; i < tp; i++) {
            wz[i] = i < t ? z[i] : 0.0;
            wg[i] = i < t ? given->mean[at[i]] : 0.0;
            one[i] = i < t ? 1.0 : 0.0;
        }
        forward(L, t, wz);
        forward(L, t, wg);
        forward(L, t, one);
        for (long k = 0; k < t; k++)
            logs += log(L[k * tp + k]);
        const double p = dot(one, one, tp);
        const double zz = dot(wz, wz, tp), zg = dot(wz, wg, tp), gg = dot(wg, wg, tp);
        const double oz = dot(one, wz, tp), og = dot(one, wg, tp);
        arrays->p[j] = p;
        for (long r = 0; r < R; r++) {
            const double f = given->factors[r], c = (oz - f * og) / p;
            const double S = zz - 2 * f * zg + f * f * gg - p * c * c, s2 = ((S > 0.0 ? S : 0.0) + 1.0) / (double)t;
            arrays->constant[j * R + r] = c;
            arrays->s2[j * R + r] = s2;
            arrays->score[j * R + r] =
                given->prior[j * R + r] - 0.5 * (double)t * log(s2) - logs - 0.5 * log(p);
        }
    }
    return 1;
}

/* The most probable models with their weights and residuals, by kernel; returns the probability of factors but 0. */
static double choose(const Sizes *s, const Arrays *arrays, const Given *given)
{
    const long R = s->R, models = s->kernels * s->V * R, tp = up_to(s->t, DOUBLES);
    double total = 0.0, shared = 0.0, largest = -INFINITY, kept = 0.0;
    for (long m = 0; m < models; m++)
        largest = arrays->score[m] > largest ? arrays->score[m] : largest;
    for (long m = 0; m < models; m++) {
        arrays->score[m] = exp(arrays->score[m] - largest);
        total += arrays->score[m];
        shared += m % R ? arrays->score[m] : 0.0;
    }
    for (long k = 0; k < s->kept; k++) {
        long best = 0;
        for (long m = 1; m < models; m++)
            best = arrays->score[m] > arrays->score[best] ? m : best;
        long place = k;
        for (; place > 0 && arrays->model[place - 1] > best; place--) {
            arrays->model[place] = arrays->model[place - 1];
            arrays->weight[place] = arrays->weight[place - 1];
        }
        arrays->model[place] = best;
        arrays->weight[place] = arrays->score[best];
        kept += arrays->score[best];
        arrays->score[best] = -1.0;
    }
    for (long k = 0; k < s->kept; k++) {
        const long m = arrays->model[k], j = m / R;
        const double f = given->factors[m % R], c = arrays->constant[m];
        arrays->weight[k] /= kept;
        for (long i = 0; i < tp; i++)
            arrays->residual[k * tp + i] =
                arrays->z[j * tp + i] - f * arrays->g[j * tp + i] - c * arrays->one[j * tp + i];
    }
    return shared / total;
}

INLINE double improvement(const double *h, double u)
{
    if (u <= -H_REACH)
        return 0.0;
    if (u >= H_REACH)
        return u;
    const double at = (u + H_REACH) * (H_POINTS / (2.0 * H_REACH));
    const long k = (long)at;
    return h[k] + (at - (double)k) * (h[k + 1] - h[k]);
}

/* The expected improvement over `best` at the points, 0 at known ones. */
static void evaluate(const Sizes *s, const Given *given, const Arrays *arrays, const int *at, double best, long count)
{
    const long t = s->t, tp = up_to(t, DOUBLES), G = s->G, R = s->R;
    Doubles *const V = (Doubles *)arrays->V;
    for (long first = 0; first < count; first += DOUBLES) {
        int x[DOUBLES];
        double sum[DOUBLES] = {0.0};
        for (long l = 0; l < DOUBLES; l++)
            x[l] = arrays->points[first + l < count ? first + l : count - 1];
        for (long k = 0; k < s->kept;) {
            const long j = arrays->model[k] / R, c = j / s->V;
            const double *L = arrays->L + j * t * tp, *one = arrays->one + j * tp;
            const double *plain = given->plain + (c < s->L ? c : c - s->L) * G * G;
            for (long i = 0; i < t; i++) {
                const double *row = plain + (long)at[i] * G;
                for (long l = 0; l < DOUBLES; l++)
                    V[i][l] = row[x[l]];
                if (c >= s->L) {
                    const double *more = given->common + (long)at[i] * G;
                    for (long l = 0; l < DOUBLES; l++)
                        V[i][l] = s->own * V[i][l] + more[x[l]];
                }
            }
            Doubles squares = {0.0}, ones = {0.0}, prior;
            for (long i = 0; i < t; i++) {
                const double *column = L + i * tp;
                const Doubles v = V[i] / column[i];
                V[i] = v;
                squares += v * v;
                ones += one[i] * v;
                for (long b = i + 1; b < t; b++)
                    V[b] -= column[b] * v;
            }
            for (long l = 0; l < DOUBLES; l++)
                prior[l] = c < s->L ? 1.0 : s->own + given->common[(long)x[l] * G + x[l]];
            const Doubles rest = 1.0 - ones, unit = prior - squares + rest * rest / arrays->p[j];
            for (; k < s->kept && arrays->model[k] / R == j; k++) {
                const long m = arrays->model[k];
                const double *residual = arrays->residual + k * tp, f = given->factors[m % R];
                Doubles mean = {0.0};
                for (long i = 0; i < t; i++)
                    mean += residual[i] * V[i];
                for (long l = 0; l < DOUBLES; l++) {
                    const double sd = sqrt(arrays->s2[m] * (unit[l] > 1e-9 ? unit[l] : 1e-9));
                    const double found = mean[l] + arrays->constant[m] + f * given->mean[x[l]];
                    sum[l] += arrays->weight[k] * sd * improvement(given->h, (found - best) / sd);
                }
            }
        }
        for (long l = 0; l < DOUBLES && first + l < count; l++)
            arrays->values[first + l] = arrays->known[x[l]] ? 0.0 : sum[l];
    }
}

/* The row of the largest value: of all points, or of the best clusters around coarse rows. */
static long search(const Sizes *s, const Given *given, const Arrays *arrays, const int *at, double best, double *value)
{
    const int whole = s->clusters == 0;
    const long count = whole ? s->G : s->coarse;
    long found = -1;
    *value = 0.0;
    for (long k = 0; k < count; k++)
        arrays->points[k] = whole ? (int)k : given->coarse[k];
    evaluate(s, given, arrays, at, best, count);
    long filled = 0;
    for (long k = 0; k < count; k++) {
        if (arrays->values[k] > *value) {
            *value = arrays->values[k];
            found = arrays->points[k];
        }
        long place = filled < s->clusters ? filled++ : s->clusters;
        for (; place > 0 && arrays->top[place - 1] < arrays->values[k]; place--)
            if (place < s->clusters) {
                arrays->top[place] = arrays->top[place - 1];
                arrays->best[place] = arrays->best[place - 1];
            }
        if (place < s->clusters) {
            arrays->top[place] = arrays->values[k];
            arrays->best[place] = k;
        }
    }
    const long more = filled * s->width;
    for (long k = 0; k < more; k++)
        arrays->points[k] = given->members[arrays->best[k / s->width] * s->width + k % s->width];
    evaluate(s, given, arrays, at, best, more);
    for (long k = 0; k < more; k++)
        if (arrays->values[k] > *value) {
            *value = arrays->values[k];
            found = arrays->points[k];
        }
    return found;
}

/* out: n rows, -1 where no improvement of at least `least` is expected or a matrix has no factor; shared: n. Returns 1
   without memory. */
int grid_improvement(const Sizes *s, const double *plain, const double *common, const double *noises, const double *mean,
                     const double *factors, const double *prior, const int *index, const double *z, const int *coarse,
                     const int *members, const double *h, double least, long *out, double *shared)
{
    const long t = s->t, tp = up_to(t, DOUBLES), J = s->kernels * s->V, models = J * s->R;
    const long most = s->clusters ? (s->coarse > s->clusters * s->width ? s->coarse : s->clusters * s->width) : s->G;
    const Given given = {plain, common, noises, mean, factors, prior, index, z, coarse, members, h};
    Memory memory = {0};
    const Arrays arrays = {
        doubles(&memory, J * t * tp), doubles(&memory, J * tp), doubles(&memory, J * tp), doubles(&memory, J * tp),
        doubles(&memory, J), doubles(&memory, J), doubles(&memory, models), doubles(&memory, models),
        doubles(&memory, models), doubles(&memory, s->kept * tp), doubles(&memory, s->kept),
        doubles(&memory, t * DOUBLES), doubles(&memory, most), doubles(&memory, s->clusters),
        array(&memory, s->kept, sizeof(long)), array(&memory, s->clusters, sizeof(long)),
        array(&memory, most, sizeof(int)), array(&memory, s->G, 1),
    };
    if (memory.failed)
        return release(&memory);
    memset(arrays.known, 0, (size_t)s->G);
    for (long a = 0; a < s->n; a++) {
        const int *at = index + a * t;
        double best = -INFINITY, value = 0.0;
        out[a] = -1;
        shared[a] = 0.0;
        if (!fit(s, &given, &arrays, at, z + a * t))
            continue;
        shared[a] = choose(s, &arrays, &given);
        for (long i = 0; i < t; i++) {
            arrays.known[at[i]] = 1;
            best = z[a * t + i] > best ? z[a * t + i] : best;
        }
        const long found = search(s, &given, &arrays, at, best, &value);
        out[a] = value >= least ? found : -1;
        for (long i = 0; i < t; i++)
            arrays.known[at[i]] = 0;
    }
    release(&memory);
    return 0;
}
