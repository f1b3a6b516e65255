package understudy.spark;

/** An error that Python reports, or the end or the silence of a Python process. */
final class PythonException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  PythonException(String message) {
    super(message);
  }

  PythonException(String message, Throwable cause) {
    super(message, cause);
  }
}
