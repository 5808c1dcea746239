/* CG: the smallest eigenvalue of a sparse matrix, by inverse iteration with conjugate gradients.
 *
 * The matrix is divided into a grid of blocks, one per rank; the number of ranks is a power of two. A product is summed along each
 * row of the grid by recursive doubling, then exchanged with the transposed rank. */
#include "nas.h"

enum { INNER = 25, OUTER = 15 };
#define CONDITION 0.1

static const struct problem {
	int order, nonzeros;
	double shift, zeta;
} problems[3] = {
	{1400, 7, 10, 8.5971775078648},
	{7000, 8, 12, 10.362595087124},
	{14000, 11, 20, 17.130235054029},
};

static const struct problem *problem;
static int rows, columns, row, column, height, width;

/* A rank's block in compressed sparse rows: row r has the elements from starts[r] on. */
static int *starts, *places;
static double *elements;

struct entry {
	int row, column, order;
	double value;
};

/* By row, then by column; elements of one place in the order of their generation. */
static int compare(const void *one, const void *other)
{
	const struct entry *a = one, *b = other;
	if (a->row != b->row)
		return a->row < b->row ? -1 : 1;
	if (a->column != b->column)
		return a->column < b->column ? -1 : 1;
	return a->order < b->order ? -1 : a->order > b->order;
}

/* Generates a sparse random vector, with 0.5 at index `at`; returns its length. */
static int sparse_vector(uint64_t *stream, int at, int *indices, double *values)
{
	int count = 0, found, range = 1;
	while (range < problem->order)
		range *= 2;
	while (count < problem->nonzeros) {
		double value = draw(stream);
		int index = (int)(range * draw(stream));
		for (found = 0; found < count && indices[found] != index; found++)
			;
		if (index < problem->order && found == count)
			indices[count] = index, values[count++] = value;
	}
	for (found = 0; found < count && indices[found] != at; found++)
		;
	indices[found] = at, values[found] = 0.5;
	return found < count ? count : count + 1;
}

/* Generates a rank's block: a sum of outer products of sparse vectors, weighted to give the condition number. */
static void make_block(void)
{
	int each = problem->nonzeros + 1, *indices = room(each, sizeof(int)), count = 0, length = 0, top = row * height, left = column * width;
	struct entry *entries = room((size_t)each * each * problem->order, sizeof *entries);
	double *values = room(each, sizeof(double)), size = 1, ratio = pow(CONDITION, 1.0 / problem->order);
	uint64_t stream = skipped(SEED, 1);
	for (int at = 0; at < problem->order; at++, size *= ratio) {
		int own = sparse_vector(&stream, at, indices, values);
		for (int i = 0; i < own; i++)
			for (int j = 0; j < own; j++) {
				int r = indices[i] - top, c = indices[j] - left;
				double more = indices[i] == at && indices[j] == at ? CONDITION - problem->shift : 0;
				if (r >= 0 && r < height && c >= 0 && c < width) {
					entries[count] = (struct entry){r, c, count, values[j] * (size * values[i]) + more};
					count++;
				}
			}
	}
	qsort(entries, count, sizeof *entries, compare);
	starts = room(height + 1, sizeof(int)), places = room(count, sizeof(int)), elements = room(count, sizeof(double));
	for (int at = 0, r = 0; r < height; starts[++r] = length)
		for (; at < count && entries[at].row == r; at++)
			if (length > starts[r] && places[length - 1] == entries[at].column)
				elements[length - 1] += entries[at].value;
			else
				places[length] = entries[at].column, elements[length++] = entries[at].value;
	free(entries), free(indices), free(values);
}

static void exchange(int with, const double *own, double *theirs, int count)
{
	end();
	MPI_Sendrecv(own, count, MPI_DOUBLE, with, 1, theirs, count, MPI_DOUBLE, with, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	begin();
}

/* Sums over a row of the grid; `theirs` has room for as many. */
static void row_sum(double *values, double *theirs, int count)
{
	for (int bit = 1; bit < columns; bit *= 2) {
		exchange(row * columns + (column ^ bit), values, theirs, count);
		for (int at = 0; at < count; at++)
			values[at] += theirs[at];
	}
}

static double dot(const double *a, const double *b)
{
	double sum = 0, theirs;
	for (int at = 0; at < width; at++)
		sum += a[at] * b[at];
	row_sum(&sum, &theirs, 1);
	return sum;
}

/* Multiplies the matrix by a vector; argument and result are divided by columns. */
static void product(const double *x, double *out, double *sums, double *theirs)
{
	for (int r = 0; r < height; r++) {
		sums[r] = 0;
		for (int at = starts[r]; at < starts[r + 1]; at++)
			sums[r] += elements[at] * x[places[at]];
	}
	row_sum(sums, theirs, height);
	int is_square = rows == columns;
	int to = is_square ? column * columns + row : column / 2 * columns + 2 * row + column % 2;
	const double *part = is_square || column % 2 == 0 ? sums : sums + height / 2;
	exchange(to, part, out, width);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int class = class_of(argc, argv), times = times_of(argc, argv), size = world_size();
	CHECK((size & (size - 1)) == 0);
	problem = &problems[class];
	for (rows = 1; rows * rows * 4 <= size; rows *= 2)
		;
	columns = size / rows, row = world_rank() / columns, column = world_rank() % columns;
	CHECK(problem->order % rows == 0 && problem->order % columns == 0);
	height = problem->order / rows, width = problem->order / columns;
	begin();
	make_block();
	double *x = room(width, sizeof *x), *z = room(width, sizeof *z), *r = room(width, sizeof *r), *p = room(width, sizeof *p);
	double *q = room(width, sizeof *q), *sums = room(height, sizeof *sums), *theirs = room(height, sizeof *theirs), zeta = 0;
	for (int time = 0; time < times; time++)
		/* The first step is a warm-up, whose result is discarded. */
		for (int step = 0; step <= OUTER; step++) {
			for (int at = 0; at < width; at++) {
				x[at] = step > 1 ? x[at] : 1;
				z[at] = 0, r[at] = x[at], p[at] = x[at];
			}
			double rho = dot(r, r);
			for (int inner = 0; inner < INNER; inner++) {
				product(p, q, sums, theirs);
				double alpha = rho / dot(p, q), before = rho;
				for (int at = 0; at < width; at++)
					z[at] += alpha * p[at], r[at] -= alpha * q[at];
				rho = dot(r, r);
				for (int at = 0; at < width; at++)
					p[at] = r[at] + rho / before * p[at];
			}
			double norm = sqrt(dot(z, z));
			zeta = problem->shift + 1 / dot(x, z);
			for (int at = 0; at < width; at++)
				x[at] = z[at] / norm;
		}
	end();
	verify("cg", class, &zeta, &problem->zeta, 1, 1e-10);
	return 0;
}
