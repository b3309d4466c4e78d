/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epf._call: what a call of a library costs Python, in C. Packs a structure out of numbers and tensors, calls a function of the library without Python's
 * lock, and compares a tensor with what a call wants. call.py says the same in Python and serves where this cannot be loaded: change both.
 *
 * Against the stable ABI of CPython 3.10: one file for all later versions. Knows nothing of PyTorch but the names of a tensor's attributes.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { FIELDS_MAX = 40 };

static PyObject *name_data_ptr, *name_dtype, *name_shape, *name_device, *name_is_contiguous,
	*name_element_size;

/* A number, 0 of None, else the address of a tensor. False: an exception is set. */
static bool value_of(PyObject *o, uint64_t *out)
{
	PyObject *address;

	if (o == Py_None) {
		*out = 0;
		return true;
	}
	if (PyLong_Check(o)) {
		*out = PyLong_AsUnsignedLongLong(o);
		return *out != UINT64_MAX || !PyErr_Occurred();
	}
	address = PyObject_CallMethodObjArgs(o, name_data_ptr, NULL);
	if (!address)
		return false;
	*out = PyLong_AsUnsignedLongLong(address);
	Py_DECREF(address);
	return *out != UINT64_MAX || !PyErr_Occurred();
}

/* Writes a structure whose first field is its own size to out. format: I or Q for each other field. Returns its bytes; 0: an exception is set. */
static Py_ssize_t fill(unsigned char out[8 * (FIELDS_MAX + 1)], PyObject *form,
		       PyObject *const *values, Py_ssize_t n)
{
	Py_ssize_t fields, at = 8;
	uint64_t v;
	char *format;

	if (PyBytes_AsStringAndSize(form, &format, &fields))
		return 0;
	if (n != fields || fields > FIELDS_MAX) {
		PyErr_Format(PyExc_TypeError, "pack: %zd values for %zd fields; at most %d", n,
			     fields, FIELDS_MAX);
		return 0;
	}
	for (Py_ssize_t i = 0; i < fields; i++) {
		Py_ssize_t bytes = format[i] == 'I' ? 4 : 8;

		if (!value_of(values[i], &v))
			return 0;
		if (bytes == 4 && v > UINT32_MAX) {
			PyErr_Format(PyExc_OverflowError,
				     "pack: field %zd does not fit into 32 bits", i);
			return 0;
		}
		/* Fields of 8 bytes are aligned in the structures of both libraries: the declarations in Python have no holes. */
		memcpy(out + at, &v, (size_t)bytes);
		at += bytes;
	}
	v = (uint64_t)at;
	memcpy(out, &v, 8);
	return at;
}

/* pack(format, value...): bytes of a structure. */
static PyObject *pack(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
	unsigned char out[8 * (FIELDS_MAX + 1)];
	Py_ssize_t bytes;

	(void)self;
	if (n < 1)
		return PyErr_Format(PyExc_TypeError, "pack: no format");
	bytes = fill(out, args[0], args + 1, n - 1);
	return bytes ? PyBytes_FromStringAndSize((const char *)out, bytes) : NULL;
}

/*
 * launch(check, function, object, format, stream, value...): int f(void *, const void *, void *) with a structure of these values, unless int check(void *)
 * of the same object returns less than 0; check 0: none. Returns what the last of them returns.
 */
static PyObject *launch(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
	unsigned char out[8 * (FIELDS_MAX + 1)];
	uint64_t check, function, object, stream;
	int rc = 0;

	(void)self;
	if (n < 5)
		return PyErr_Format(PyExc_TypeError, "launch: %zd arguments; it takes 5 or more",
				    n);
	if (!value_of(args[0], &check) || !value_of(args[1], &function) ||
	    !value_of(args[2], &object) || !value_of(args[4], &stream) ||
	    !fill(out, args[3], args + 5, n - 5))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	if (check)
		rc = ((int (*)(void *))(uintptr_t)check)((void *)(uintptr_t)object);
	if (rc >= 0)
		rc = ((int (*)(void *, const void *, void *))(uintptr_t)function)(
			(void *)(uintptr_t)object, out, (void *)(uintptr_t)stream);
	Py_END_ALLOW_THREADS;
	return PyLong_FromLong(rc);
}

/*
 * run(function, object): int f(void *); run(function, object, address): int f(void *, void *); run(function, object, packed or address, stream): int f(void *,
 * const void *, void *); run(function, object, packed, halves, stream): the same with an unsigned in front of the stream. function: its address. Returns what
 * it returns.
 */
static PyObject *run(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
	uint64_t v[5] = { 0 };
	const char *packed = NULL;
	Py_ssize_t bytes;
	int rc;

	(void)self;
	if (n < 2 || n > 5)
		return PyErr_Format(PyExc_TypeError, "run: %zd arguments; it takes 2 to 5", n);
	for (Py_ssize_t i = 0; i < n; i++)
		if (i == 2 && (n > 4 || (n == 4 && PyBytes_Check(args[2])))
			    ? PyBytes_AsStringAndSize(args[2], (char **)&packed, &bytes) != 0
			    : !value_of(args[i], &v[i]))
			return NULL;
	Py_BEGIN_ALLOW_THREADS;
	if (n == 2)
		rc = ((int (*)(void *))(uintptr_t)v[0])((void *)(uintptr_t)v[1]);
	else if (n == 3)
		rc = ((int (*)(void *, void *))(uintptr_t)v[0])((void *)(uintptr_t)v[1],
								(void *)(uintptr_t)v[2]);
	else if (n == 4)
		rc = ((int (*)(void *, const void *, void *))(uintptr_t)v[0])(
			(void *)(uintptr_t)v[1], packed ? packed : (const void *)(uintptr_t)v[2],
			(void *)(uintptr_t)v[3]);
	else
		rc = ((int (*)(void *, const void *, unsigned, void *))(uintptr_t)v[0])(
			(void *)(uintptr_t)v[1], packed, (unsigned)v[3], (void *)(uintptr_t)v[4]);
	Py_END_ALLOW_THREADS;
	return PyLong_FromLong(rc);
}

/* Compares and lets go of `got`. -1: an exception is set. */
static int is_equal(PyObject *got, PyObject *wanted)
{
	int same = -1;

	if (got)
		same = got == wanted ? 1 : PyObject_RichCompareBool(got, wanted, Py_EQ);
	Py_XDECREF(got);
	return same;
}

/* Are these the sizes? -1 among those wanted: any. */
static int has_sizes(PyObject *t, PyObject *wanted)
{
	PyObject *shape = PyObject_GetAttr(t, name_shape);
	Py_ssize_t n;
	int same;

	if (!shape || !PyTuple_Check(shape) || !PyTuple_Check(wanted)) {
		Py_XDECREF(shape);
		return shape ? 0 : -1;
	}
	n = PyTuple_Size(shape);
	same = n == PyTuple_Size(wanted);
	for (Py_ssize_t i = 0; i < n && same == 1; i++) {
		long long want = PyLong_AsLongLong(PyTuple_GetItem(wanted, i));

		same = want < 0 || want == PyLong_AsLongLong(PyTuple_GetItem(shape, i));
	}
	Py_DECREF(shape);
	return PyErr_Occurred() ? -1 : same;
}

/* fits(t, kind, dtype, sizes, device): whether t is a contiguous tensor of that kind. What does not hold is for Python to say. */
static PyObject *fits(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
	int holds;

	(void)self;
	if (n != 5)
		return PyErr_Format(PyExc_TypeError, "fits: %zd arguments; it takes 5", n);
	holds = (PyObject *)Py_TYPE(args[0]) == args[1] ? 1 : PyObject_IsInstance(args[0], args[1]);
	if (holds == 1)
		holds = is_equal(PyObject_GetAttr(args[0], name_dtype), args[2]);
	if (holds == 1)
		holds = has_sizes(args[0], args[3]);
	if (holds == 1)
		holds = is_equal(PyObject_GetAttr(args[0], name_device), args[4]);
	if (holds == 1)
		holds = is_equal(PyObject_CallMethodObjArgs(args[0], name_is_contiguous, NULL),
				 Py_True);
	return holds < 0 ? NULL : PyBool_FromLong(holds);
}

/*
 * rows(t, kind, device): (rows, columns, dtype, bytes of an element, address) of a contiguous tensor of that kind with two dimensions; None: it is none. What
 * does not hold is for Python to say.
 */
static PyObject *rows(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
	PyObject *t, *shape, *dtype, *width, *address, *out = NULL;
	int holds;

	(void)self;
	if (n != 3)
		return PyErr_Format(PyExc_TypeError, "rows: %zd arguments; it takes 3", n);
	t = args[0];
	holds = (PyObject *)Py_TYPE(t) == args[1] ? 1 : PyObject_IsInstance(t, args[1]);
	if (holds == 1)
		holds = is_equal(PyObject_GetAttr(t, name_device), args[2]);
	if (holds == 1)
		holds = is_equal(PyObject_CallMethodObjArgs(t, name_is_contiguous, NULL), Py_True);
	if (holds != 1)
		return holds < 0 ? NULL : Py_BuildValue("");
	shape = PyObject_GetAttr(t, name_shape);
	if (shape && (!PyTuple_Check(shape) || PyTuple_Size(shape) != 2)) {
		Py_DECREF(shape);
		return Py_BuildValue("");
	}
	dtype = shape ? PyObject_GetAttr(t, name_dtype) : NULL;
	width = dtype ? PyObject_CallMethodObjArgs(t, name_element_size, NULL) : NULL;
	address = width ? PyObject_CallMethodObjArgs(t, name_data_ptr, NULL) : NULL;
	if (address)
		out = PyTuple_Pack(5, PyTuple_GetItem(shape, 0), PyTuple_GetItem(shape, 1), dtype,
				   width, address);
	Py_XDECREF(address);
	Py_XDECREF(width);
	Py_XDECREF(dtype);
	Py_XDECREF(shape);
	return out;
}

static PyMethodDef methods[] = {
	{ "pack", (PyCFunction)(void (*)(void))pack, METH_FASTCALL,
	  "pack(format, value...) -> bytes" },
	{ "launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL,
	  "launch(check, function, object, format, stream, value...) -> int" },
	{ "run", (PyCFunction)(void (*)(void))run, METH_FASTCALL,
	  "run(function, object[, address | packed[, halves], stream]) -> int" },
	{ "fits", (PyCFunction)(void (*)(void))fits, METH_FASTCALL,
	  "fits(t, kind, dtype, sizes, device) -> bool" },
	{ "rows", (PyCFunction)(void (*)(void))rows, METH_FASTCALL,
	  "rows(t, kind, device) -> (rows, columns, dtype, bytes of an element, address) | None" },
	{ NULL, NULL, 0, NULL },
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "_call",
	.m_doc = "What a call of a library costs Python, in C. See call.py.",
	.m_size = -1,
	.m_methods = methods,
};

PyMODINIT_FUNC PyInit__call(void);

PyMODINIT_FUNC PyInit__call(void)
{
	name_data_ptr = PyUnicode_InternFromString("data_ptr");
	name_dtype = PyUnicode_InternFromString("dtype");
	name_shape = PyUnicode_InternFromString("shape");
	name_device = PyUnicode_InternFromString("device");
	name_is_contiguous = PyUnicode_InternFromString("is_contiguous");
	name_element_size = PyUnicode_InternFromString("element_size");
	if (!name_data_ptr || !name_dtype || !name_shape || !name_device || !name_is_contiguous ||
	    !name_element_size)
		return NULL;
	return PyModule_Create(&module);
}
