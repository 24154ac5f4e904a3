"""A module that starts a thread when it is loaded."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
