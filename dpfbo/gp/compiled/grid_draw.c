/* The maximiser of an exact posterior draw on a grid, one agent after another (see `draws.exact_draw_on_grid`):

       f = f0 + k(grid, x) (K + noise I)^-1 (y - e - f0(x)),    f = basis c,    f0 = basis w

   Values on the whole grid are computed in single precision. Those that may be the largest, given the rounding error,
   are computed again in double precision. */

#include "factor.h"

enum { AGENTS = 8 }; /* number of agents whose values on the grid are computed as one matrix product */

typedef struct {
    long n, t;      /* agents, observations of each */
    long G, F;      /* points of the grid; functions of the basis, 1 + 2 J */
    long width, Fp; /* G and F, padded */
} Sizes;

typedef struct {
    double *K;          /* t x padded t, by columns: the Gram matrix, then its factor */
    double *v, *at;     /* padded t */
    double *spectrum;   /* padded F */
    double *w, *c;      /* padded F; AGENTS x padded F */
    float *left;        /* F x AGENTS */
    float *values;      /* AGENTS x width */
} Arrays;

/* The coefficients c of f; returns 0 if the matrix has no factor. index: t; rest: t, y - e; normals: F. */
static int coefficients(const Sizes *sizes, const Arrays *arrays, const double *line, const double *basis,
                        const int *index, const double *rest, const double *normals, double length, double variance,
                        double noise, double circle, double *c)
{
    const long t = sizes->t, F = sizes->F, Fp = sizes->Fp, tp = up_to(t, DOUBLES), J = F / 2;
    const double turn = 2 * PI * length / circle, height = sqrt(2 * PI) * length / circle * variance;
    double *spectrum = arrays->spectrum, *w = arrays->w;
    for (long j = 0; j <= J; j += DOUBLES) {
        Doubles order;
        for (int l = 0; l < DOUBLES; l++)
            order[l] = turn * (double)(j + l);
        Doubles a = height * exponential(-0.5 * order * order);
        for (int l = 0; l < DOUBLES && j + l <= J; l++) {
            spectrum[j + l] = (j + l ? 2.0 : 1.0) * a[l];
            if (j + l)
                spectrum[J + j + l] = 2.0 * a[l];
        }
    }
    for (long j = 0; j < Fp; j++)
        w[j] = j < F ? sqrt(spectrum[j]) * normals[j] : 0.0;
    for (long i = 0; i < tp; i++) {
        arrays->at[i] = i < t ? line[index[i]] : FAR;
        arrays->v[i] = i < t ? rest[i] - dot(basis + index[i] * Fp, w, Fp) : 0.0;
    }
    covariance(arrays->at, t, length, variance, arrays->K);
    for (long i = 0; i < t; i++)
        arrays->K[i * tp + i] += noise;
    if (!factorise(arrays->K, t))
        return 0;
    forward(arrays->K, t, arrays->v);
    backward(arrays->K, t, arrays->v);
    double *update = c; /* sum_i v_i basis(x_i) */
    for (long j = 0; j < Fp; j++)
        update[j] = 0.0;
    for (long i = 0; i < t; i++)
        add(arrays->v[i], basis + index[i] * Fp, update, Fp);
    for (long j = 0; j < Fp; j++)
        c[j] = j < F ? w[j] + spectrum[j] * update[j] : 0.0;
    return 1;
}

/* The first row of the largest value on the grid, or -1 if values are not finite. values: width, single precision. */
static long maximiser(const Sizes *sizes, const double *basis, const double *c, const float *values)
{
    double norm = 0.0, best = -INFINITY;
    for (long j = 0; j < sizes->F; j++)
        norm += fabs(c[j]);
    const double error = (double)(sizes->F + 4) * (double)FLT_EPSILON * norm; /* twice the largest possible error */
    if (!(error < FLT_MAX))
        return -1;
    float largest = -INFINITY;
    for (long g = 0; g < sizes->G; g++)
        largest = values[g] > largest ? values[g] : largest;
    const double enough = (double)largest - error;
    long found = -1;
    for (long g = 0; g < sizes->G; g++)
        if ((double)values[g] >= enough) {
            double value = dot(basis + g * sizes->Fp, c, sizes->Fp);
            if (value > best) {
                best = value;
                found = g;
            }
        }
    return found;
}

/* The grid row of the maximiser of each agent's draw, or -1 if it cannot be computed.

   line: G; basis: G x padded F; columns: F x width, the basis in single precision; index: n x t; rest: n x t, y - e;
   normals: n x F; hyper: 3 x n, length-scales, variances, noises. Paddings are 0. Returns 1 if memory is short. */
int grid_draw(const Sizes *sizes, const double *line, const double *basis, const float *columns, const int *index,
              const double *rest, const double *normals, const double *hyper, double circle, long *out)
{
    const long n = sizes->n, t = sizes->t, F = sizes->F, Fp = sizes->Fp, width = sizes->width;
    const long tp = up_to(t, DOUBLES);
    Memory memory = {0};
    const Arrays arrays = {
        doubles(&memory, t * tp), doubles(&memory, tp), doubles(&memory, tp), doubles(&memory, Fp), doubles(&memory, Fp),
        doubles(&memory, AGENTS * Fp), floats(&memory, F * AGENTS), floats(&memory, AGENTS * width),
    };
    if (memory.failed)
        return release(&memory);
    for (long first = 0; first < n; first += AGENTS) {
        const long many = n - first < AGENTS ? n - first : AGENTS;
        for (long k = 0; k < AGENTS; k++) {
            const long a = first + k;
            double *c = arrays.c + k * Fp;
            if (k < many)
                out[a] = coefficients(sizes, &arrays, line, basis, index + a * t, rest + a * t, normals + a * F,
                                      hyper[a], hyper[n + a], hyper[2 * n + a], circle, c) - 1;
            for (long j = 0; j < F; j++)
                arrays.left[j * AGENTS + k] = k < many && out[a] == 0 ? (float)c[j] : 0.0f;
        }
        for (long j = 0; j < width; j += 2 * FLOATS)
            tile(8, 2, F, arrays.left, AGENTS, columns + j, width, arrays.values + j);
        for (long k = 0; k < many; k++)
            if (out[first + k] == 0)
                out[first + k] = maximiser(sizes, basis, arrays.c + k * Fp, arrays.values + k * width);
    }
    release(&memory);
    return 0;
}
